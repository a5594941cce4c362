"""Calls of torch.compile, and warnings when a function reaches its limit of graphs and runs uncompiled."""

import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from harness.tracking.frames import shorten

_LOGGER = "torch._dynamo.convert_frame"
_LIMIT = "torch._dynamo hit config."
# The arguments of that message, as torch 2.6 to 2.13 give them: "'forward' (/home/…/model.py:12)".
_FUNCTION = re.compile(r"'(?P<name>[^']*)' \((?P<file>.*):(?P<line>\d+)\)")


def has_compiled() -> bool:
    """Return whether torch.compile was called in this process, since the last `torch.compiler.reset`. Does
    not import torch's compiler."""
    backends = getattr(sys.modules.get("torch._dynamo.eval_frame"), "cached_backends", {})
    return any(map(callable, list(backends.values())))  # Of functions that it leaves alone: None.


@contextmanager
def watching_compiler(warn: Callable[[str], None]) -> Iterator[None]:
    """Call `warn` with a sentence whenever a function reaches its limit of graphs."""
    watch = _LimitWatch(warn)
    logger = logging.getLogger(_LOGGER)
    logger.addHandler(watch)
    try:
        yield
    finally:
        logger.removeHandler(watch)


class _LimitWatch(logging.Handler):
    """Handler of the log records of torch's compiler."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._warn = warn

    def emit(self, record: logging.LogRecord) -> None:
        """Warn if the record is about the limit."""
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
