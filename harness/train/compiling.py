"""Limits of torch.compile for one graph per combination of settings."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

# A graph belongs to one combination of the live settings: three of AMP, two of checkpointing, three of the
# precision, two of the layout, and two sizes of the batch before it becomes a variable, come to 72. PyTorch's
# default is 8.
GRAPHS = 128
# Of all functions together, PyTorch's default is 256.
ALL_GRAPHS = 4_096


def allow_recompiling() -> None:
    """Let a function have `GRAPHS` graphs: beyond its limit torch runs it uncompiled, and only logs that."""
    config: Any = import_module("torch._dynamo.config")  # Takes a second, and nothing else needs it.
    for name, least in (("recompile_limit", GRAPHS), ("accumulated_recompile_limit", ALL_GRAPHS)):
        setattr(config, name, max(getattr(config, name), least))


def compiled(model: torch.nn.Module) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return the model compiled at its first call, and again for new settings and shapes."""
    allow_recompiling()
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = torch.compile(model)
    return function
