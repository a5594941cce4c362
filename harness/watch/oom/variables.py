"""The largest variables of the frames that an out-of-memory error has left: what a script holds by name.

Only strings and numbers leave this module. A tensor counts with its whole storage, and each storage once; the
weights, gradients and optimizer state are listed by module instead (`harness.watch.oom.capture`).
"""

import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from inspect import CO_OPTIMIZED
from types import FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

from harness.analysis.oom.report import LiveVariable
from harness.tracking.frames import is_own, is_torch, shorten
from harness.tracking.owners import storage_bytes, storage_id

MOST_VARIABLES = 5
# Smaller ones explain nothing. A share of all that was found.
_LEAST_SHARE = 0.01
_MOST_DEPTH, _MOST_OBJECTS, _MOST_S = 6, 200_000, 2.0
_CONTAINERS: tuple[Any, ...] = (list, tuple, set, frozenset, deque)
_LEFT_OUT = (ModuleType, FunctionType, type, Optimizer, str, int, float, complex, type(None))


class _Variable(NamedTuple):
    """A variable, its function ("file.py:12 train"), and the sizes in bytes of the storages behind it."""

    name: str
    site: str
    sizes: dict[int, int]


class _Search:
    """The search for storages of one device type behind values, without those in `owned`."""

    def __init__(self, device_type: str, owned: set[int]) -> None:
        self._device_type = device_type
        self._owned = owned
        self._objects = 0
        self._until_s = time.thread_time() + _MOST_S

    def sizes_of(self, value: Any) -> dict[int, int]:
        """Return the sizes of the storages that `value` holds, by their ids."""
        sizes: dict[int, int] = {}
        seen: set[int] = set()
        waiting: list[tuple[Any, int]] = [(value, 0)]
        while waiting and not self._is_over():
            one, depth = waiting.pop()
            if is_kind_of(one, _LEFT_OUT) or id(one) in seen:
                continue
            seen.add(id(one))
            self._objects += 1
            if not self._add(one, sizes) and depth < _MOST_DEPTH:
                waiting += [(part, depth + 1) for part in _parts(one)]
        return sizes

    def _is_over(self) -> bool:
        return self._objects > _MOST_OBJECTS or time.thread_time() > self._until_s

    def _add(self, one: Any, sizes: dict[int, int]) -> bool:
        """Add the storage of a tensor, an array or bytes; return whether `one` is one of these."""
        if is_kind_of(one, Tensor):
            key = storage_id(one)
            if key is not None and key not in self._owned and one.device.type == self._device_type:
                sizes[key] = storage_bytes(one)
            return True
        numpy = sys.modules.get("numpy")
        is_array = numpy is not None and is_kind_of(one, numpy.ndarray)
        if is_array or is_kind_of(one, (bytes, bytearray)):
            if self._device_type == "cpu":
                base = one
                while is_array and is_kind_of(base.base, type(one)):
                    base = base.base
                sizes[id(base)] = base.nbytes if is_array else len(one)
            return True
        return False


def largest_variables(
    frames: Sequence[FrameType], lines: Sequence[int], device_type: str, owned: Iterable[Tensor]
) -> tuple[LiveVariable, ...]:
    """Return the variables of `frames`, the outermost first, that hold the most memory of `device_type`, the
    largest first. A storage that several hold counts for the first of them, the largest. `lines` are those
    that the frames have reached, and `owned` the tensors that do not count."""
    search = _Search(device_type, {key for one in owned if (key := storage_id(one)) is not None})
    found: list[_Variable] = []
    for frame, line in zip(frames, lines, strict=True):
        file = shorten(frame.f_code.co_filename)
        if is_torch(file) or is_own(file):
            continue
        site = f"{file}:{line} {frame.f_code.co_name}"
        for name, value in _named(frame):
            if sizes := search.sizes_of(value):
                found.append(_Variable(name, site, sizes))
    counted: set[int] = set()
    variables = []
    for one in sorted(found, key=lambda one: -sum(one.sizes.values())):
        new = one.sizes.keys() - counted
        counted |= new
        held_bytes = sum(one.sizes[key] for key in new)
        variables.append(LiveVariable(one.name, one.site, held_bytes, len(new)))
    least_bytes = _LEAST_SHARE * sum(one.held_bytes for one in variables)
    variables.sort(key=lambda one: -one.held_bytes)
    return tuple(one for one in variables[:MOST_VARIABLES] if one.held_bytes > least_bytes)


def is_kind_of(value: Any, kinds: Any) -> bool:
    """Return whether the type of `value` is one of `kinds`. As `isinstance`, without any code of a proxy."""
    return issubclass(type(value), kinds)


def locals_of(frame: FrameType) -> dict[str, Any]:
    """Return the variables of a frame. Until Python 3.13 a frame keeps what `f_locals` returns for as long as
    it lives, and with it all memory of the failed step; a function's is a copy, which is emptied here."""
    own = frame.f_locals
    variables = dict(own)
    if frame.f_code.co_flags & CO_OPTIMIZED and type(own) is dict:
        own.clear()
    return variables


def _named(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """Yield the variables of a frame, of objects each attribute: "kept", "net.history", "self.cache"."""
    for name, value in locals_of(frame).items():
        if name.startswith("__") or is_kind_of(value, _LEFT_OUT):
            continue
        if is_kind_of(value, nn.Module):
            yield from _named_of_module(name, value, set())
        elif is_kind_of(value, (Tensor, dict, *_CONTAINERS)) or not (own := list(_attributes(value))):
            yield name, value
        else:
            yield from ((f"{name}.{attribute}", part) for attribute, part in own)


def _named_of_module(path: str, module: nn.Module, seen: set[int]) -> Iterator[tuple[str, Any]]:
    seen.add(id(module))
    own = dict(_attributes(module))
    yield from ((f"{path}.{name}", part) for name, part in own.items() if not name.startswith("_"))
    for name, child in own.get("_modules", {}).items():
        if child is not None and id(child) not in seen:
            yield from _named_of_module(f"{path}.{name}", child, seen)


def _parts(value: Any) -> list[Any]:
    """Return what a container or an object holds. Calls nothing that a class of the script's may define."""
    try:
        if is_kind_of(value, dict):
            return list(dict.values(value))
        for kind in _CONTAINERS:
            if is_kind_of(value, kind):
                return list(kind.__iter__(value))
    except RuntimeError:  # Another thread has changed it meanwhile.
        return []
    return [part for _, part in _attributes(value)]


def _attributes(value: Any) -> list[tuple[str, Any]]:
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return []
    return list(own.items()) if type(own) is dict else []
