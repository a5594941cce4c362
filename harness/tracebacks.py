"""Tracebacks of a script: without the frames of Stepscope, as Python prints them for the bare script, and the
handlers that an error passes."""

import dis
import runpy
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import CodeType, TracebackType

import harness

# This package, and the one that scripts import.
_PACKAGES = tuple(f"{Path(harness.__file__).parents[1] / name}/" for name in ("harness", "stepscope"))
_COMPARISONS = frozenset({"CHECK_EXC_MATCH", "CHECK_EG_MATCH"})
_RUNPY = (runpy.__file__, "<frozen runpy>")


def leave_out_own_frames(error: BaseException) -> BaseException:
    """Take the frames of Stepscope and of runpy out of the traceback of `error`, and of what led to it;
    returns `error`. One that the script did not raise has no traceback left."""
    visited: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        link = waiting.pop()
        if link is not None and id(link) not in visited:
            visited.add(id(link))
            link.__traceback__ = _without_own(link.__traceback__)
            waiting += [link.__cause__, link.__context__]
    return error


def was_raised_by_runpy(error: BaseException) -> bool:
    """Return whether runpy itself raised `error`, before anything of the script ran."""
    files = [one.tb_frame.f_code.co_filename for one in _walk(error.__traceback__)]
    return isinstance(error, ImportError) and files[-1] in _RUNPY and all(map(_is_own, files))


def passes_on(code: CodeType, position: int) -> bool:
    """Return whether the handler around an instruction of `code` is a `finally` or `with`. Their body comes
    right after the error was pushed; an `except` compares the error first, or, without a class, drops it."""
    handlers: list[list[str]] = []  # Those around the instruction, each with its instructions so far.
    for instruction in dis.get_instructions(code):
        if instruction.offset > position:
            break
        name = instruction.opname
        if name == "PUSH_EXC_INFO":
            handlers.append([])
        elif handlers:
            handlers[-1].append(name)
            if handlers[-1][-2:] == ["POP_EXCEPT", "RERAISE"]:  # The end of each handler.
                handlers.pop()
    if not handlers:
        return False
    return handlers[-1][0] != "POP_TOP" and _COMPARISONS.isdisjoint(handlers[-1])


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
