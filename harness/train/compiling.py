"""Has torch.compile keep a graph for each combination of settings, and says when it no longer does."""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch

from harness.tracking.frames import shorten

# A graph belongs to one combination of the live settings: three of AMP, two of checkpointing, three of the
# precision, two of the layout, and two sizes of the batch before it becomes a variable, come to 72. PyTorch's
# default is 8.
GRAPHS = 128
# Of all functions together, PyTorch's default is 256.
ALL_GRAPHS = 4_096

_LOGGER = "torch._dynamo.convert_frame"
_LIMIT = "torch._dynamo hit config."
# The arguments of that message, as torch 2.6 to 2.13 give them: "'forward' (/home/…/model.py:12)".
_FUNCTION = re.compile(r"'(?P<name>[^']*)' \((?P<file>.*):(?P<line>\d+)\)")


def allow_recompiling() -> None:
    """Let a function have `GRAPHS` graphs: beyond its limit torch runs it uncompiled, and only logs that."""
    config: Any = import_module("torch._dynamo.config")  # Takes a second, and nothing else needs it.
    for name, least in (("recompile_limit", GRAPHS), ("accumulated_recompile_limit", ALL_GRAPHS)):
        setattr(config, name, max(getattr(config, name), least))


def compiled(model: torch.nn.Module) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The model, compiled at its first call and again for settings and shapes that are new to it."""
    allow_recompiling()
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = torch.compile(model)
    return function


@contextmanager
def watching_compiler(warn: Callable[[str], None]) -> Iterator[None]:
    """Have `warn` called with a sentence whenever a function has reached its limit of graphs."""
    watch = _LimitWatch(warn)
    logger = logging.getLogger(_LOGGER)
    logger.addHandler(watch)
    try:
        yield
    finally:
        logger.removeHandler(watch)


class _LimitWatch(logging.Handler):
    """Receives what torch's compiler logs."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._warn = warn

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record of the logger."""
        text = record.getMessage()
        if not text.startswith(_LIMIT):
            return
        match = _FUNCTION.search(text)
        name = (
            "A function" if match is None else f"{match['name']} ({shorten(match['file'])}:{match['line']})"
        )
        self._warn(
            f"{name} has as many compiled graphs as torch.compile keeps: with settings and shapes that are "
            "new to it, it runs uncompiled from now on, and times and memory are those of uncompiled code. "
            "Start a new run to compile it anew."
        )
