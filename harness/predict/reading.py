"""Reads a trace: what is held at the peak of each phase, by category and by module."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from torch import nn

from harness.predict.answer import CATEGORIES, ModuleBytes
from harness.predict.scratch import STORAGE_BYTES
from harness.predict.tracing import Trace
from harness.records.memory import MemoryCategory
from harness.records.run import DeviceKind

_ROUND_BYTES = 512

Parts = tuple[int, ...]
"""Bytes in the order of `CATEGORIES`."""
_AT = {category: at for at, category in enumerate(CATEGORIES)}


class Reading(NamedTuple):
    """`peaks`: what is held at the peak of each phase of the second step. `static`: between steps."""

    peaks: Mapping[str, Parts]
    static: Parts
    modules: tuple[ModuleBytes, ...]
    sizes: Sequence[int]
    events: Sequence[int]


def read(trace: Trace, kind: DeviceKind) -> Reading:
    """Read a trace for a device of `kind`."""
    sizes = _sizes(trace, kind)
    categories = _categories(trace)
    last = trace.phases[trace.last_step : -1]
    ends = [phase.event for phase in trace.phases[trace.last_step + 1 :]]
    tops = _tops(trace, sizes, ends)
    wanted = {event for _, event in tops.values()} | {trace.phases[-1].event}
    parts = _parts_after(trace.events, sizes, categories, wanted)
    peaks = {name: parts[event] for name, (_, event) in tops.items()}
    forward = max(end for phase, end in zip(last, ends, strict=True) if phase.name == "forward")
    optimizer = max(phase.event for phase in last if phase.name == "optimizer")
    modules = _modules(trace, sizes, categories, forward, optimizer)
    return Reading(peaks, parts[trace.phases[-1].event], modules, sizes, trace.events)


def _sizes(trace: Trace, kind: DeviceKind) -> list[int]:
    """Of each storage, with what its allocator adds."""
    if kind is DeviceKind.CUDA:
        return [-(-birth.size_bytes // _ROUND_BYTES) * _ROUND_BYTES for birth in trace.births]
    return [
        birth.size_bytes + (0 if number in trace.scratch else STORAGE_BYTES)
        for number, birth in enumerate(trace.births)
    ]


def _categories(trace: Trace) -> list[MemoryCategory]:
    """Of each storage. What nobody holds by name and a forward pass leaves behind is an activation; what it
    does not is temporary."""
    deaths = {~event: at for at, event in enumerate(trace.events) if event < 0}
    found = []
    for number, birth in enumerate(trace.births):
        known = trace.categories.get(number)
        if known is not None:
            found.append(known)
        elif number in trace.scratch:
            found.append(MemoryCategory.LIBRARIES)
        elif (
            trace.phases[birth.phase].name == "forward"
            and deaths.get(number, len(trace.events)) >= trace.phases[birth.phase + 1].event
        ):
            found.append(MemoryCategory.ACTIVATIONS)
        else:
            found.append(MemoryCategory.TEMPORARIES)
    return found


def _tops(trace: Trace, sizes: Sequence[int], ends: Sequence[int]) -> dict[str, tuple[int, int]]:
    """The most that is held in each phase of the second step, and after how many events."""
    first = trace.phases[trace.last_step].event
    held = _sum(trace.events[:first], sizes)
    tops: dict[str, tuple[int, int]] = {}
    begin = first
    for phase, end in zip(trace.phases[trace.last_step : -1], ends, strict=True):
        top = max(tops.get(phase.name, (0, begin)), (held, begin))
        for at in range(begin, end):
            event = trace.events[at]
            held += sizes[event] if event >= 0 else -sizes[~event]
            if held > top[0]:
                top = (held, at + 1)
        tops[phase.name] = top
        begin = end
    return tops


def _sum(events: Iterable[int], sizes: Sequence[int]) -> int:
    return sum(sizes[event] if event >= 0 else -sizes[~event] for event in events)


def _parts_after(
    events: Sequence[int], sizes: Sequence[int], categories: Sequence[MemoryCategory], wanted: set[int]
) -> dict[int, Parts]:
    """What is held by category after each of the `wanted` numbers of events."""
    held = [0] * len(_AT)
    found = {0: tuple(held)} if 0 in wanted else {}
    for at, event in enumerate(events, start=1):
        number = event if event >= 0 else ~event
        held[_AT[categories[number]]] += sizes[number] if event >= 0 else -sizes[number]
        if at in wanted:
            found[at] = tuple(held)
    return found


def _modules(
    trace: Trace, sizes: Sequence[int], categories: Sequence[MemoryCategory], forward: int, optimizer: int
) -> tuple[ModuleBytes, ...]:
    """Weights, gradients and optimizer state as they are when the optimizer begins, activations as they are
    when the (last) forward pass ends; modules that hold none of these are left out."""
    held: dict[str, list[int]] = {}

    def add(path: str, at: int, number: int) -> None:
        held.setdefault(path, [0, 0, 0, 0])[at] += sizes[number]

    columns = {MemoryCategory.WEIGHTS: 0, MemoryCategory.GRADIENTS: 1, MemoryCategory.OPTIMIZER: 2}
    for number in _living(trace.events[:optimizer]):
        path, column = trace.holders.get(number), columns.get(categories[number])
        if path is not None and column is not None:
            add(path, column, number)
    for number in _living(trace.events[:forward]):
        if categories[number] is MemoryCategory.ACTIVATIONS:
            add(trace.births[number].module or "", 3, number)
    return tuple(
        ModuleBytes(path, _kind(module), *held[path])
        for path, module in trace.model.named_modules()
        if path in held
    )


def _living(events: Iterable[int]) -> set[int]:
    living: set[int] = set()
    for event in events:
        if event >= 0:
            living.add(event)
        else:
            living.discard(~event)
    return living


def _kind(module: nn.Module) -> str:
    return type(module).__name__
