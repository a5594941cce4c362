"""The largest variables of the frames that an out-of-memory error has left: what a script holds by name.

Only strings and numbers leave this module. Memory counts once, for the largest variable behind which it is
found; weights, gradients and optimizer state are listed by module instead (`harness.watch.oom.capture`).
"""

import functools
import gc
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from inspect import CO_OPTIMIZED
from types import CellType, FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from harness.analysis.oom.report import LiveVariable
from harness.tracking.frames import is_installed, is_library, is_own, shorten
from harness.watch.oom.arrays import (
    Memory,
    attributes_of,
    attributes_of_class,
    is_kind_of,
    is_long_string,
    is_memory,
    is_part_of_table,
    is_table,
    memory_of,
    memory_of_container,
)
from harness.watch.oom.graphs import MOST_NODES, GraphWalk, node_of
from harness.watch.oom.holders import parts_of_error

MOST_VARIABLES = 5
# Smaller ones explain nothing. A share of all that was found.
_LEAST_SHARE = 0.01
# The share of what the largest variable holds that another one has to hold to be named in its place.
_NEARLY_ALL = 0.9
_MOST_DEPTH = 6
# Objects that are looked into, and the processor time, for one variable and for all of them.
_MOST_OBJECTS, _MOST_S, _MOST_S_OF_ALL = 50_000, 0.5, 3.0
_CLOCK_EVERY = 1_000
_CONTAINERS: tuple[Any, ...] = (list, tuple, set, frozenset, deque)
# The package that a script imports.
_INTERFACE = "stepscope"
_PLAIN = frozenset({int, float, complex, bool, str, type(None)})
_LEFT_OUT = (ModuleType, type)
# What a decorated function has returned, and arguments that wait for a call. Only Python's collector sees it.
_HOLDERS: tuple[Any, ...] = (functools._lru_cache_wrapper, functools.partial)
# The frame's own, that of the variable here, and that of the call of `sys.getrefcount`.
_OWN_REFERENCES = 3


class _VariableMemory(NamedTuple):
    """The sizes in bytes of the memory behind a variable, by address: of its own, and saved for a backward
    pass in the graphs of its tensors. Complete unless the search was cut. `depth` is the mean number of
    objects between the variable and its own memory."""

    sizes: dict[int, int]
    saved: dict[int, int]
    is_complete: bool
    depth: float


class _Variable(NamedTuple):
    """A variable, its frame ("file.py:12 train"), whether that is one of an installed package, and what it
    holds."""

    name: str
    site: str
    is_installed: bool
    memory: _VariableMemory


@dataclass(slots=True)
class _Reachable:
    """The memory that a search has reached so far: sizes by storage, nodes of graphs, and the sum of sizes
    times depths."""

    sizes: dict[int, int]
    nodes: list[Any]
    depth_bytes: int = 0

    def memory(self, saved: dict[int, int], is_complete: bool) -> _VariableMemory:
        """Return it as the memory behind a variable, with what its graphs have `saved`."""
        return _VariableMemory(
            self.sizes, saved, is_complete, self.depth_bytes / max(1, sum(self.sizes.values()))
        )


class _Search:
    """The search for memory on one device behind values, without that at the addresses `owned`."""

    def __init__(self, device: torch.device, owned: set[int], running: Sequence[FrameType]) -> None:
        self._device = device
        self._running = running
        self._owned = owned
        self._until_s = time.thread_time() + _MOST_S_OF_ALL

    def behind(self, value: Any) -> _VariableMemory:
        """Return the memory that `value` holds. Containers are read item by item, never copied: there is
        little memory left."""
        reachable = _Reachable({}, [])
        until_s = min(self._until_s, time.thread_time() + _MOST_S)
        try:
            is_complete = self._collect(value, reachable, until_s)
        except MemoryError:  # What was reached until then counts.
            is_complete = False
        if is_complete:
            return self._with_graphs(reachable, until_s)
        return reachable.memory({}, is_complete=False)

    def _collect(self, value: Any, reachable: _Reachable, until_s: float) -> bool:
        """Add to `reachable` the memory behind `value`, and the nodes of the graphs of its tensors; return
        whether that is all of it."""
        sizes, nodes = reachable.sizes, reachable.nodes
        visited: set[int] = set()
        waiting: list[Iterator[Any]] = [iter((value,))]
        count = 0
        while waiting:
            try:
                one = next(waiting[-1])
            except (StopIteration, RuntimeError):  # RuntimeError: another thread has changed it meanwhile.
                waiting.pop()
                continue
            count += 1
            if count % _CLOCK_EVERY == 0 and time.thread_time() > until_s:
                return False
            if type(one) in _PLAIN and not is_long_string(one):
                continue
            if is_kind_of(one, _LEFT_OUT) or id(one) in visited:
                continue
            if is_memory(one):
                reachable.depth_bytes += len(waiting) * self._note(one, sizes)
                if is_kind_of(one, Tensor) and len(nodes) < MOST_NODES and (node := node_of(one)) is not None:
                    nodes.append(node)
            elif len(waiting) <= _MOST_DEPTH:
                if len(visited) == _MOST_OBJECTS:
                    return False
                visited.add(id(one))
                container = memory_of_container(one, self._device)
                reachable.depth_bytes += len(waiting) * self._count(container, sizes)
                waiting.append(self._parts(one))
        return True

    def _parts(self, value: Any) -> Iterator[Any]:
        if is_kind_of(value, BaseException):
            return parts_of_error(value, self._running)
        return filter(is_long_string, value) if _is_plain(value) else _parts(value)

    def _with_graphs(self, reachable: _Reachable, until_s: float) -> _VariableMemory:
        saved: dict[int, int] = {}
        walk = GraphWalk(reachable.nodes, lambda: time.thread_time() > until_s)
        try:
            for tensor in walk.saved():
                self._note(tensor, saved)
        except MemoryError:  # The variables themselves are known, and the walk has released what it took.
            return reachable.memory(saved, is_complete=False)
        return reachable.memory(saved, walk.is_complete and len(reachable.nodes) < MOST_NODES)

    def _note(self, value: Any, sizes: dict[int, int]) -> int:
        return self._count(memory_of(value, self._device), sizes)

    def _count(self, memory: Memory | None, sizes: dict[int, int]) -> int:
        """Add to `sizes` what counts of `memory`; return the bytes that are new there."""
        if memory is None or memory.key in self._owned:
            return 0
        before_bytes = sizes.get(memory.key, 0)
        if memory.size_bytes <= before_bytes:
            return 0
        sizes[memory.key] = memory.size_bytes
        return memory.size_bytes - before_bytes


def largest_variables(
    frames: Sequence[FrameType],
    lines: Sequence[int],
    device: torch.device,
    owned: Iterable[Tensor],
    modules: Iterable[tuple[str, dict[str, Any]]] = (),
) -> tuple[LiveVariable, ...]:
    """Return the variables of `frames`, the outermost first, and of `modules`, by file, that hold the most
    memory of `device`, the largest first. `lines` are those that the frames have reached, and `owned` the
    tensors that do not count."""
    candidates: list[_Variable] = []
    with torch._C.DisableTorchFunctionSubclass():
        memories = (memory_of(one, device) for one in owned)
        search = _Search(device, {memory.key for memory in memories if memory is not None}, frames)
        for is_installed, frame, line in _script_first(frames, lines):
            site = f"{shorten(frame.f_code.co_filename)}:{line} {frame.f_code.co_name}"
            candidates += [
                _Variable(name, site, is_installed, search.behind(value))
                for name, value in _named(locals_of(frame))
            ]
        variable_ids: set[int] = set()
        for file, variables_of_module in modules:
            # Most of it is imported, often from another one of them.
            own = {
                name: value for name, value in variables_of_module.items() if id(value) not in variable_ids
            }
            variable_ids.update(map(id, own.values()))
            reachable = ((name, search.behind(value)) for name, value in _named(own))
            candidates += [_Variable(name, file, False, one) for name, one in reachable if one.sizes]
    try:
        variables = _shared(candidates)
    except MemoryError:  # As with tens of thousands of tensors: what the largest one holds is known.
        variables = _largest(candidates)
    least_bytes = _LEAST_SHARE * sum(one.held_bytes for one in variables)
    variables.sort(key=lambda one: -one.held_bytes)
    return tuple(one for one in variables[:MOST_VARIABLES] if one.held_bytes > least_bytes)


def _script_first(frames: Sequence[FrameType], lines: Sequence[int]) -> list[tuple[bool, FrameType, int]]:
    """Return the frames with variables to name, and their lines: those of the script, and then those of
    installed packages."""
    calls = []
    for frame, line in zip(frames, lines, strict=True):
        file = shorten(frame.f_code.co_filename)
        if not is_library(file) and not is_own(file):
            calls.append((is_installed(frame.f_code.co_filename), frame, line))
    return sorted(calls, key=lambda call: call[0])


def _shared(variables: Sequence[_Variable]) -> list[LiveVariable]:
    """Return the variables with their parts of the memory that was found."""
    own = _shares(
        [one.memory.sizes for one in variables],
        set(),
        [(one.is_installed, one.memory.depth) for one in variables],
    )
    counted = {key for one in variables for key in one.memory.sizes}
    saved = _shares(
        [one.memory.saved for one in variables], counted, [(one.is_installed, 0.0) for one in variables]
    )
    return [
        LiveVariable(
            one.name,
            one.site,
            sum(own_part.values()) + sum(saved_part.values()),
            len(own_part) + len(saved_part),
            one.memory.is_complete,
            sum(saved_part.values()),
        )
        for one, own_part, saved_part in zip(variables, own, saved, strict=True)
    ]


def _largest(variables: Sequence[_Variable]) -> list[LiveVariable]:
    """Return the largest variable alone, without what graphs keep for it."""
    one = max(variables, key=lambda one: sum(one.memory.sizes.values()))
    sizes = one.memory.sizes
    return [LiveVariable(one.name, one.site, sum(sizes.values()), len(sizes), False, 0)]


def _shares(
    sizes: Sequence[dict[int, int]], counted: set[int], ranks: Sequence[tuple[bool, float]]
) -> list[dict[int, int]]:
    """Return the part of each of `sizes` that counts for it: memory that is in several counts for the
    largest, and none that is in `counted`. Of those that hold nearly all that the largest holds, the one of
    the lowest rank takes its place: `net.outputs` of the script, and not `trainer.fit_loop`, behind which is
    the same."""
    counted = set(counted)
    parts: list[dict[int, int]] = [{} for _ in sizes]
    totals = [sum(one.values()) for one in sizes]
    waiting = sorted(range(len(sizes)), key=lambda at: -totals[at])
    while waiting:
        at = waiting[0]
        part = {key: size for key, size in sizes[at].items() if key not in counted}
        if 2 * sum(part.values()) > totals[at]:  # Else it is behind one that has been chosen.
            least_bytes = _NEARLY_ALL * totals[at]
            rivals = [
                one
                for one in waiting
                if totals[one] >= least_bytes and _common_bytes(sizes[at], sizes[one]) >= least_bytes
            ]
            at = min(rivals, key=lambda one: (ranks[one], one))
            part = {key: size for key, size in sizes[at].items() if key not in counted}
        parts[at] = part
        counted |= part.keys()
        waiting.remove(at)
    return parts


def _common_bytes(first: dict[int, int], second: dict[int, int]) -> int:
    return sum(size for key, size in first.items() if key in second)


def locals_of(frame: FrameType) -> dict[str, Any]:
    """Return the variables of a frame. Until Python 3.13 a frame keeps what `f_locals` returns for as long as
    it lives, and with it all memory of the failed step; a function's is a copy, which is emptied here unless
    the script has it from `locals()`."""
    own = frame.f_locals
    variables = dict(own)
    if frame.f_code.co_flags & CO_OPTIMIZED and type(own) is dict and sys.getrefcount(own) <= _OWN_REFERENCES:
        own.clear()
    return variables


def _named(variables: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the variables of a frame or a module, of objects each attribute: "kept", "net.history",
    "self.cache"; of classes those that are containers or caches. The optimizer's state is listed apart."""
    for name, value in variables.items():
        if name.startswith("__") or _is_of_interface(value):
            continue
        if type(value) in _PLAIN and not is_long_string(value):
            continue
        if is_kind_of(value, type):
            yield from (
                (f"{name}.{key}", part)
                for key, part in list(attributes_of_class(value).items())
                if _is_container(part) or is_kind_of(part, _HOLDERS)
            )
        elif is_kind_of(value, (*_LEFT_OUT, Optimizer)):
            continue
        elif is_kind_of(value, nn.Module):
            yield from _named_of_module(name, value)
        elif _is_container(value) or is_kind_of(value, (FunctionType, BaseException, *_HOLDERS)):
            yield name, value
        else:
            yield from ((f"{name}.{key}", part) for key, part in list(attributes_of(value).items()))


def _is_container(value: Any) -> bool:
    return is_kind_of(value, (dict, *_CONTAINERS)) or is_memory(value) or is_table(value)


def _is_of_interface(value: Any) -> bool:
    """Return whether `value` is Stepscope's, as the run of a script that calls `stepscope.watch`."""
    return str(type(value).__module__).partition(".")[0] == _INTERFACE


def _named_of_module(name: str, module: nn.Module) -> Iterator[tuple[str, Any]]:
    waiting: list[tuple[str, Any]] = [(name, module)]
    visited: set[int] = set()
    while waiting:
        path, one = waiting.pop()
        if one is None or id(one) in visited:
            continue
        visited.add(id(one))
        own = attributes_of(one)
        yield from ((f"{path}.{key}", part) for key, part in list(own.items()) if not key.startswith("_"))
        waiting += [(f"{path}.{key}", child) for key, child in own.get("_modules", {}).items()]


def _parts(value: Any) -> Iterator[Any]:
    """Return an iterator over what a container or an object holds. Calls nothing that a class of the
    script's may define."""
    if is_kind_of(value, dict):
        return iter(dict.values(value))
    for kind in _CONTAINERS:
        if is_kind_of(value, kind):
            parts: Iterator[Any] = kind.__iter__(value)
            return parts
    if type(value) is FunctionType:
        file = shorten(value.__code__.co_filename)
        return iter(() if is_library(file) or is_own(file) else (*(value.__closure__ or ()), value.__dict__))
    if type(value) is CellType or is_part_of_table(value):
        return iter(gc.get_referents(value))
    if type(value) is FrameType:
        # Not its objects, as `self`, nor those of a module: the script has them in variables of its own.
        is_function = value.f_code.co_flags & CO_OPTIMIZED
        return iter([one for one in locals_of(value).values() if _is_container(one)] if is_function else ())
    if is_kind_of(value, _HOLDERS):
        return _referents(value)
    return iter(attributes_of(value).values())


def _is_plain(value: Any) -> bool:
    """Return whether a list or tuple has nothing but numbers, strings and the like: ten times as fast as its
    items one by one. Of these only long strings count."""
    return type(value) in (list, tuple) and _PLAIN.issuperset(map(type, value))


def _referents(holder: Any) -> Iterator[Any]:
    for one in gc.get_referents(holder):
        if type(one).__name__ == "_lru_list_elem":  # An entry of a cache with a limit: its key and its value.
            yield from gc.get_referents(one)
        else:
            yield one
