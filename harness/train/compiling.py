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
    for name, least in (("recompile_limit", GRAPHS), ("accumulated_recompile_limit", ALL_GRAPHS)):
        limit = limit_name(name)
        setattr(_config(), limit, max(getattr(_config(), limit), least))


def limit_name(name: str) -> str:
    """Return the installed torch's name of a limit of its compiler: before 2.7 it had another one."""
    return name if hasattr(_config(), name) else name.replace("recompile", "cache_size")


def _config() -> Any:
    return import_module("torch._dynamo.config")  # Takes a second, and nothing else needs it.


def compiled(model: torch.nn.Module) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return the model compiled at its first call, and again for new settings and shapes."""
    allow_recompiling()
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = torch.compile(model)
    return function
