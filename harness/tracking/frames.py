"""Python stacks, interned, with shortened paths that contain no home folder. Free of torch."""

import os
import re
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import harness

# The most frames of a stack.
MOST_FRAMES = 12
# The most frames that are read: models nest, and each module of torch adds three.
_DEEPEST = 80
_TRACKING = ("harness/tracking/", "harness/watch/", "harness/attach/")
# An installation for development is on no path that `sys.path` lists.
_ROOT = str(Path(harness.__file__).parents[1])
_WATCH = "harness/tracking/storages.py"
_NOISE = ("torch/_dynamo/", "torch/_compile.py", "torch/utils/_python_dispatch.py", "torch/_ops.py")
# Of modes, which pass on what other code asks for.
_PASSING_ON = frozenset({"__torch_dispatch__", "__torch_function__"})
_ABSOLUTE = re.compile(r"/|[A-Za-z]:/|~")
_PACKAGES = re.compile(r".*(?:site|dist)-packages/")
_STANDARD = re.compile(r".*/lib/python3\.\d+/")
# Sources, headers, objects and libraries of other languages; a snapshot with C++ stacks has frames such as
# "thread48.o:0", and tracebacks through Cython's modules name sources that are not installed with them.
_NATIVE = re.compile(
    r"\.(?:c|cc|cpp|cxx|cu|hip|h|hh|hpp|hxx|cuh|inl|inc|S|o|obj|a|so|dylib|dll|rs|pyx|pxd|pxi)(?:\.[\d.]+)?$"
)
NO_SITE = "no Python code (autograd or a library)"


class StackFrame(NamedTuple):
    """One call: the file's shortened path, the line, the function."""

    file: str
    line: int
    function: str

    @property
    def text(self) -> str:
        """The frame as "harness/train/loop.py:62 train"."""
        return f"{self.file}:{self.line} {self.function}"


# A stack, innermost first.
Frames = tuple[StackFrame, ...]


@lru_cache(maxsize=10_000)
def shorten(path: str) -> str:
    """Return the path from its package on, else its last two parts. Never a home folder."""
    path = path.replace("\\", "/")
    if not _ABSOLUTE.match(path):
        return path
    for pattern in (_PACKAGES, _STANDARD):
        if match := pattern.match(path):
            return path[match.end() :]
    roots = sorted({_ROOT, *map(os.path.abspath, sys.path)}, key=len, reverse=True)
    for root in roots:
        if len(root) > 1 and path.startswith(root + "/"):
            return path[len(root) + 1 :]
    return "/".join(path.rsplit("/", 2)[-2:])


def is_torch(file: str) -> bool:
    """Return whether a shortened path is torch's or not Python code."""
    return file.startswith("torch/") or file in ("", "??") or _NATIVE.search(file) is not None


def is_own(file: str) -> bool:
    """Return whether a shortened path is that of the tracking code."""
    return file.startswith(_TRACKING)


def reduce_stack(stack: Sequence[StackFrame]) -> Frames:
    """Reduce a stack to at most `MOST_FRAMES`, with only the innermost two frames of torch."""
    frames: list[StackFrame] = []
    outside = False
    watch = max((i for i, frame in enumerate(stack) if frame.file == _WATCH), default=-1)
    for frame in stack[watch + 1 :]:
        if is_own(frame.file) or frame.file.startswith(_NOISE) or frame.function in _PASSING_ON:
            continue
        in_torch = is_torch(frame.file)
        outside = outside or not in_torch
        if not in_torch or (not outside and len(frames) < 2 and not _NATIVE.search(frame.file)):
            frames.append(frame)
        if len(frames) == MOST_FRAMES:
            break
    return tuple(frames)


def site(frames: Frames) -> str:
    """Return the innermost frame outside torch."""
    return next((frame.text for frame in frames if not is_torch(frame.file)), NO_SITE)


def text(frames: Frames) -> str:
    """Format one frame per line, innermost first."""
    return "\n".join(frame.text for frame in frames)


class StackReader:
    """Reads the calling thread's Python stack in a few microseconds; equal stacks are one object."""

    def __init__(self, most: int = 50_000) -> None:
        """At most `most` different stacks are cached."""
        self._most = most
        self._cache: dict[tuple[CodeType | int, ...], Frames] = {}

    def read(self) -> Frames:
        """Return the reduced stack of the caller."""
        key: list[CodeType | int] = []
        frame: FrameType | None = sys._getframe(1)
        innermost = frame
        while frame is not None and len(key) < 2 * _DEEPEST:
            key += (frame.f_code, frame.f_lasti)
            frame = frame.f_back
        cached = self._cache.get(tuple(key))
        if cached is None:
            cached = reduce_stack(_frames(innermost))
            if len(self._cache) < self._most:
                self._cache[tuple(key)] = cached
        return cached


def _frames(frame: FrameType | None) -> list[StackFrame]:
    frames: list[StackFrame] = []
    while frame is not None and len(frames) < _DEEPEST:
        code = frame.f_code
        frames.append(StackFrame(shorten(code.co_filename), frame.f_lineno or 0, code.co_name))
        frame = frame.f_back
    return frames
