"""Detection of lines that make the CPU wait for a CUDA device, with torch's sync debug mode.

While a catcher is on, torch warns at each synchronizing call; the warnings of one thread are counted by the
Python line that made the call, and none is shown. Torch's documentation says what it misses: calls in
torch.distributed and torch.sparse; nor does it count `torch.cuda.synchronize` or waiting for an event. Nor
are calls counted within a block of `warnings.catch_warnings`: its filters could raise ours in the program.
"""

import linecache
import re
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import wraps
from types import CodeType, FrameType
from typing import Any, NamedTuple, Protocol, TextIO

import torch

from harness.tracking.frames import is_library, shorten
from harness.watch.training import Call, Replaced, Wrapper

_SYNC = "called a synchronizing"
# The warnings of torch 2.6 to 2.13 at each call, and once when the mode is switched on.
_TEXT = re.compile(f"{_SYNC}|Synchronization debug mode is a prototype", re.IGNORECASE)
_FILTER = ("always", _TEXT, UserWarning, None, 0)
# From Python 3.14 on, the code of `warnings` is in a module of its own.
_WARNINGS = {warnings.WarningMessage.__init__.__code__.co_filename, warnings.__file__}
_BACKWARD = "torch/autograd/function.py"
_OFF, _WARN = 0, 1
_CODE_LENGTH = 120
# Called by Python after each change of the filters; the second one from 3.14 on.
_CHANGED = ("_filters_mutated", "_filters_mutated_lock_held")
# In place of the id of a block: counting is over.
_FOR_GOOD = 0


class SyncDebugMode(Protocol):
    """The used part of torch.cuda."""

    def get_sync_debug_mode(self) -> int:
        """0, 1 or 2: do nothing, warn, or raise at a synchronizing call."""
        ...

    def set_sync_debug_mode(self, debug_mode: int | str) -> None:
        """For all threads."""
        ...


class SyncSite(NamedTuple):
    """A line that made the CPU wait, and how often. `site` is as in "model.py:12 forward"."""

    site: str
    code: str
    calls: int


class SyncCatcher:
    """Counts the synchronizing calls of the thread that starts it and of the backward passes.

    Python's warnings are one state for all threads: the filter is put in without telling Python to forget
    what was shown before, and every other warning goes to where it went.
    """

    def __init__(self, library: SyncDebugMode = torch.cuda) -> None:
        self._library = library
        self._counts: Counter[tuple[CodeType | None, int]] = Counter()
        self._is_on = False
        self._thread = 0
        self._before: Callable[..., Any] = warnings.showwarning
        self._filters: object = None
        self._patches = ExitStack()
        # Blocks that change Python's warnings for a while, of all threads, which were entered meanwhile.
        self._blocks: set[int] = set()

    @property
    def is_on(self) -> bool:
        """Return whether it is counting."""
        return self._is_on

    def start(self) -> bool:
        """Start counting. Return False if the debug mode is already on."""
        if self._library.get_sync_debug_mode() != _OFF:
            return False
        self._counts.clear()
        self._thread = threading.get_ident()
        self._before, warnings.showwarning = warnings.showwarning, self._show
        _put_filter_first()
        self._filters = warnings.filters
        self._is_on = True
        self._blocks.clear()
        self._replace(warnings.catch_warnings, "__enter__", self._enter_block)
        self._replace(warnings.catch_warnings, "__exit__", self._leave_block)
        for name in _CHANGED:
            if hasattr(warnings, name):
                self._replace(warnings, name, self._change_filters)
        self._library.set_sync_debug_mode(_WARN)
        return True

    def stop(self) -> list[SyncSite]:
        """Stop counting; return the sites since `start`, the most frequent first. Idempotent."""
        if not self._is_on:
            return []
        self._switch(_WARN, _OFF)
        self._is_on = False
        self._patches.close()
        with suppress(ValueError):
            warnings.filters.remove(_FILTER)  # type: ignore[attr-defined]  # typed as a sequence
        if warnings.showwarning == self._show:
            warnings.showwarning = self._before
        return [_site(code, line, count) for (code, line), count in self._counts.most_common()]

    def _replace(self, owner: object, name: str, wrapper: Wrapper) -> None:
        self._patches.callback(Replaced(owner, name, wrapper).remove)

    def _switch(self, before: int, after: int) -> None:
        """Switch the mode, unless the program has set another one meanwhile."""
        if self._library.get_sync_debug_mode() == before:
            self._library.set_sync_debug_mode(after)

    def _enter_block(self, original: Call) -> Call:
        @wraps(original)
        def enter(block: Any) -> Any:
            if self._is_on:
                self._blocks.add(id(block))
                self._switch(_WARN, _OFF)
            return original(block)

        return enter

    def _leave_block(self, original: Call) -> Call:
        @wraps(original)
        def leave(block: Any, *error: Any) -> Any:
            result = original(block, *error)
            if self._is_on and id(block) in self._blocks:
                self._blocks.remove(id(block))
                if not self._blocks:
                    self._switch(_OFF, _WARN)
            return result

        return leave

    def _change_filters(self, original: Call) -> Call:
        @wraps(original)
        def change(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if self._is_on and not self._blocks:
                if warnings.filters is self._filters:
                    _put_filter_first()
                else:  # A block in which we began has ended; our filter and function went with it.
                    self._blocks.add(_FOR_GOOD)
                    self._switch(_WARN, _OFF)
            return result

        return change

    def _show(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        text = str(message)
        if not self._is_on or _TEXT.match(text) is None:
            self._before(message, category, filename, lineno, file, line)
        elif text.startswith(_SYNC):
            frame = sys._getframe(1)
            if threading.get_ident() == self._thread or _is_backward(frame):
                self._counts[_caller(frame)] += 1


def _put_filter_first() -> None:
    filters: list[Any] = warnings.filters  # type: ignore[assignment]  # typed as a sequence
    with suppress(ValueError):
        filters.remove(_FILTER)
    filters.insert(0, _FILTER)


def _caller(frame: FrameType | None) -> tuple[CodeType | None, int]:
    """Return the innermost line outside torch and Python's warnings; no code: there is none."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file not in _WARNINGS and not is_library(shorten(file)):
            return frame.f_code, frame.f_lineno or 0
        frame = frame.f_back
    return None, 0


def _is_backward(frame: FrameType | None) -> bool:
    """Return whether this is Python code of a backward pass, which autograd runs on threads of its own."""
    while frame is not None:
        if frame.f_code.co_filename.endswith(_BACKWARD):
            return True
        frame = frame.f_back
    return False


def _site(code: CodeType | None, line: int, count: int) -> SyncSite:
    if code is None:
        return SyncSite("no Python code", "", count)
    text = linecache.getline(code.co_filename, line).strip()[:_CODE_LENGTH]
    return SyncSite(f"{shorten(code.co_filename)}:{line} {code.co_name}", text, count)
