"""Tracebacks of a script without the frames of Stepscope, as Python prints them for the bare script."""

import runpy
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import TracebackType

import harness

# This package, and the one that scripts import.
_PACKAGES = tuple(f"{Path(harness.__file__).parents[1] / name}/" for name in ("harness", "stepscope"))
_RUNPY = (runpy.__file__, "<frozen runpy>")


def leave_out_own_frames(error: BaseException) -> BaseException:
    """Take the frames of Stepscope and of runpy out of the traceback of `error`, and of what led to it;
    returns `error`. One that the script did not raise has no traceback left."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        link = waiting.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            link.__traceback__ = _without_own(link.__traceback__)
            waiting += [link.__cause__, link.__context__]
    return error


def was_raised_by_runpy(error: BaseException) -> bool:
    """Return whether runpy itself raised `error`, before anything of the script ran."""
    files = [one.tb_frame.f_code.co_filename for one in _walk(error.__traceback__)]
    return isinstance(error, ImportError) and files[-1] in _RUNPY and all(map(_is_own, files))


def _without_own(trace: TracebackType | None) -> TracebackType | None:
    rest = [one for one in _walk(trace) if not _is_own(one.tb_frame.f_code.co_filename)]
    for one, following in pairwise([*rest, None]):
        assert one is not None
        one.tb_next = following
    return rest[0] if rest else None


def _walk(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _is_own(file: str) -> bool:
    return file.startswith(_PACKAGES) or file in _RUNPY
