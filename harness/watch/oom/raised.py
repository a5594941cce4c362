"""An error by which memory ran out: its text, and the calls that led to it."""

import re
import traceback
from collections.abc import Sequence
from itertools import dropwhile, takewhile
from pathlib import Path
from types import FrameType
from typing import NamedTuple, Self

from harness.analysis.oom.error import is_from_worker
from harness.errors import text_of
from harness.tracking.frames import shorten
from harness.watch.oom.errors import memory_error_of, with_causes

_FILE = re.compile(r'File "([^"]+)"')
# In the text of a worker's error (`ExceptionWrapper` in torch/_utils.py); of a chain, the last one counts.
_TRACEBACK = "Traceback (most recent call last):"
# Before the first of them.
_ORIGINAL = "Original Traceback"
_WORKER_CALL = re.compile(r'^ +File "([^"\n]+)", line (\d+), in (.+)$', re.MULTILINE)
# File, line and function.
Call = tuple[str, int, str]


class RaisedError(NamedTuple):
    """An error's text, as it is and cleaned, and the frames and lines of its traceback, outermost first."""

    own_text: str
    text: str
    frames: Sequence[FrameType]
    lines: Sequence[int]

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Read the error by which memory ran out: `error`, or an earlier one of its chain. The traceback of
        an earlier one begins where it was caught, so that the calls before are those of `error`."""
        memory_error = memory_error_of(error) or error
        lines: dict[FrameType, int] = {}
        for one in with_causes(error):
            lines = _joined(lines, dict(traceback.walk_tb(one.__traceback__)))
            if one is memory_error:
                break
        own_text = text_of(memory_error)
        text = clean(own_text or type(memory_error).__name__)
        return cls(own_text, text, list(lines), list(lines.values()))

    @property
    def is_from_worker(self) -> bool:
        """Return whether a loader's worker raised it."""
        return is_from_worker(self.own_text)

    @property
    def message(self) -> str:
        """The cleaned text, without the calls in the text of a worker's."""
        return clean(_without_calls(self.own_text)) or self.text

    def calls(self) -> list[Call]:
        """Return the calls that led to it, innermost first: those of the worker, then those of this
        process."""
        called = zip(reversed(self.frames), reversed(self.lines), strict=True)
        calls = [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in called]
        return [*_worker_calls(self.own_text), *calls]


def clean(text: str) -> str:
    """Return an error's text on one line, without the names of personal folders."""
    text = _FILE.sub(lambda match: f'File "{shorten(match[1])}"', text)
    return " ".join(text.replace(str(Path.home()), "~").split())


def _worker_calls(text: str) -> list[Call]:
    """Return the calls in the text of an error from a loader's worker, innermost first; none for others, and
    none where the worker was killed."""
    if not is_from_worker(text):
        return []
    calls = _WORKER_CALL.findall(text.rpartition(_TRACEBACK)[2])
    return [(file, int(line), function) for file, line, function in reversed(calls)]


def _without_calls(text: str) -> str:
    """Return the text of an error; that of a worker's without its tracebacks, which are long and stand
    before what the error says."""
    first, separator, rest = text.partition(_ORIGINAL)
    if not separator or not is_from_worker(text):
        return text
    lines = rest.rpartition(_TRACEBACK)[2].splitlines()
    start = next((at for at, line in enumerate(lines) if line and not line.startswith(" ")), 0)
    return f"{first} {' '.join(lines[start:])}"


def _joined(lines: dict[FrameType, int], earlier: dict[FrameType, int]) -> dict[FrameType, int]:
    """Return the frames of a traceback up to the first one that the traceback of an `earlier` error has too,
    and from there on those of that one: what followed, as a call of `__exit__`, is beside the point."""
    if lines.keys().isdisjoint(earlier):
        return lines | earlier
    before = takewhile(lambda call: call[0] not in earlier, lines.items())
    after = dropwhile(lambda call: call[0] not in lines, earlier.items())
    return dict(before) | dict(after)
