"""Places in the code of a script, to find out which of two comes later in it.

A place is the stack of calls that lead to it. The innermost function that leads to both places by different
calls decides, by the positions of these in its bytecode, which follow the source.
"""

import sys
from pathlib import Path
from types import CodeType, FrameType

import harness

Place = tuple[tuple[CodeType, int], ...]

_PACKAGE = str(Path(harness.__file__).parent) + "/"
# Calls of a place at most: of those of a framework some forty lie between a loop and its loader.
_DEEPEST = 100


def place_in_script() -> Place:
    """Return the place outside of this package from which it is called, the innermost call first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    calls: list[tuple[CodeType, int]] = []
    while frame is not None and len(calls) < _DEEPEST:
        calls.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(calls)


def opens_ahead() -> bool:
    """Return whether Accelerate calls. Its loaders read a batch before they return the one before it. Left
    out are those that join and divide the batches of several processes."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    if frame is None or frame.f_globals.get("__name__") != "accelerate.data_loader":
        return False
    if frame.f_code.co_qualname == "DataLoaderDispatcher.__iter__":
        return bool(frame.f_locals["self"].state.num_processes == 1)
    return frame.f_code.co_qualname == "DataLoaderShard.__iter__"


def is_after(place: Place, other: Place) -> bool:
    """Return whether `place` comes after `other` in the innermost function that leads to them by different
    calls; False without one."""
    positions = dict(reversed(other))  # Of a recursive function the innermost call.
    for code, position in place:
        if positions.get(code, position) != position:
            return position > positions[code]
    return False
