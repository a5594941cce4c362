"""Python stacks as text that shows code and no person's folders: read, interned, shortened. Free of torch."""

import os
import re
import sys
from collections.abc import Sequence
from functools import lru_cache
from types import CodeType, FrameType
from typing import NamedTuple

# Frames kept of a stack.
MOST_FRAMES = 12
# Frames looked at: models nest, and each module of torch adds three.
_DEEPEST = 80
_OWN = ("harness/tracking/", "harness/train/following.py", "harness/train/snapshots.py")
_WATCH = "harness/tracking/storages.py"
_NOISE = ("torch/_dynamo/", "torch/_compile.py", "torch/utils/_python_dispatch.py", "torch/_ops.py")
_ABSOLUTE = re.compile(r"/|[A-Za-z]:/|~")
_PACKAGES = re.compile(r".*(?:site|dist)-packages/")
_STANDARD = re.compile(r".*/lib/python3\.\d+/")
# Sources, headers, objects and libraries of other languages; a snapshot with C++ stacks has frames such as
# "thread48.o:0".
_NATIVE = re.compile(
    r"\.(?:c|cc|cpp|cxx|cu|hip|h|hh|hpp|hxx|cuh|inl|inc|S|o|obj|a|so|dylib|dll|rs)(?:\.[\d.]+)?$"
)
NO_SITE = "no Python code (autograd or a library)"


class Frame(NamedTuple):
    """One call: the file's shortened path, the line, the function."""

    file: str
    line: int
    function: str

    @property
    def text(self) -> str:
        """As "harness/train/loop.py:62 train"."""
        return f"{self.file}:{self.line} {self.function}"


# A stack, innermost first.
Frames = tuple[Frame, ...]


@lru_cache(maxsize=10_000)
def shorten(path: str) -> str:
    """A path from the package it belongs to on; else its last two parts. Never a home folder."""
    path = path.replace("\\", "/")
    if not _ABSOLUTE.match(path):
        return path
    for known in (_PACKAGES, _STANDARD):
        if found := known.match(path):
            return path[found.end() :]
    roots = sorted((os.path.abspath(root) for root in sys.path), key=len, reverse=True)
    for root in roots:
        if len(root) > 1 and path.startswith(root + "/"):
            return path[len(root) + 1 :]
    return "/".join(path.rsplit("/", 2)[-2:])


def is_torch(file: str) -> bool:
    """Whether a shortened path is torch's own or no Python at all."""
    return file.startswith("torch/") or file in ("", "??") or _NATIVE.search(file) is not None


def is_own(file: str) -> bool:
    """Whether a shortened path is that of the code that follows allocations."""
    return file.startswith(_OWN)


def tidy(stack: Sequence[Frame]) -> Frames:
    """What is worth keeping of a stack: at most `MOST_FRAMES`, of torch the innermost two alone."""
    kept: list[Frame] = []
    outside = False
    watch = max((i for i, frame in enumerate(stack) if frame.file == _WATCH), default=-1)
    for frame in stack[watch + 1 :]:
        if is_own(frame.file) or frame.file.startswith(_NOISE):
            continue
        torchs = is_torch(frame.file)
        outside = outside or not torchs
        if not torchs or (not outside and len(kept) < 2 and not _NATIVE.search(frame.file)):
            kept.append(frame)
        if len(kept) == MOST_FRAMES:
            break
    return tuple(kept)


def site(frames: Frames) -> str:
    """The innermost frame outside torch."""
    return next((frame.text for frame in frames if not is_torch(frame.file)), NO_SITE)


def text(frames: Frames) -> str:
    """One frame a line, innermost first."""
    return "\n".join(frame.text for frame in frames)


class StackReader:
    """Reads the calling thread's Python stack in a few microseconds; equal stacks are one object."""

    def __init__(self, most: int = 50_000) -> None:
        """Of more than `most` different stacks the rest are read without being kept."""
        self._most = most
        self._known: dict[tuple[CodeType | int, ...], Frames] = {}

    def read(self) -> Frames:
        """The stack of the caller, tidied."""
        key: list[CodeType | int] = []
        frame: FrameType | None = sys._getframe(1)
        innermost = frame
        while frame is not None and len(key) < 2 * _DEEPEST:
            key += (frame.f_code, frame.f_lasti)
            frame = frame.f_back
        known = self._known.get(tuple(key))
        if known is None:
            known = tidy(_frames(innermost))
            if len(self._known) < self._most:
                self._known[tuple(key)] = known
        return known


def _frames(frame: FrameType | None) -> list[Frame]:
    found: list[Frame] = []
    while frame is not None and len(found) < _DEEPEST:
        code = frame.f_code
        found.append(Frame(shorten(code.co_filename), frame.f_lineno or 0, code.co_name))
        frame = frame.f_back
    return found
