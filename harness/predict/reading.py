"""Summary of a trace: memory at the peak of each phase, by category and by module."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from torch import nn

from harness.predict.answer import CATEGORIES, ModuleBytes
from harness.predict.scratch import STORAGE_BYTES
from harness.predict.tracing import Trace
from harness.records.memory import MemoryCategory
from harness.records.run import DeviceKind

_ROUND_BYTES = 512

# Bytes in the order of `CATEGORIES`.
Parts = tuple[int, ...]
_AT = {category: at for at, category in enumerate(CATEGORIES)}


class TraceSummary(NamedTuple):
    """`peaks`: memory at the peak of each phase of the second step. `static`: the baseline between steps."""

    peaks: Mapping[str, Parts]
    static: Parts
    modules: tuple[ModuleBytes, ...]
    sizes: Sequence[int]
    events: Sequence[int]


def summarize(trace: Trace, kind: DeviceKind) -> TraceSummary:
    """Summarize a trace for a device of `kind`."""
    sizes = _sizes(trace, kind)
    categories = _categories(trace)
    last = trace.phases[trace.last_step : -1]
    ends = [phase.event for phase in trace.phases[trace.last_step + 1 :]]
    high_water = _high_water_marks(trace, sizes, ends)
    counts = {event for _, event in high_water.values()} | {trace.phases[-1].event}
    parts = _parts_after(trace.events, sizes, categories, counts)
    peaks = {name: parts[event] for name, (_, event) in high_water.items()}
    forward = max(end for phase, end in zip(last, ends, strict=True) if phase.name == "forward")
    optimizer = max(phase.event for phase in last if phase.name == "optimizer")
    modules = _modules(trace, sizes, categories, forward, optimizer)
    return TraceSummary(peaks, parts[trace.phases[-1].event], modules, sizes, trace.events)


def _sizes(trace: Trace, kind: DeviceKind) -> list[int]:
    """Return the size of each storage, with the allocator's overhead."""
    if kind is DeviceKind.CUDA:
        return [-(-birth.size_bytes // _ROUND_BYTES) * _ROUND_BYTES for birth in trace.births]
    return [
        birth.size_bytes + (0 if number in trace.scratch else STORAGE_BYTES)
        for number, birth in enumerate(trace.births)
    ]


def _categories(trace: Trace) -> list[MemoryCategory]:
    """Return the category of each storage. Unattributed storages that outlive their forward pass are
    activations, the others temporaries."""
    deaths = {~event: at for at, event in enumerate(trace.events) if event < 0}
    categories = []
    for number, birth in enumerate(trace.births):
        category = trace.categories.get(number)
        if category is not None:
            categories.append(category)
        elif number in trace.scratch:
            categories.append(MemoryCategory.LIBRARIES)
        elif (
            trace.phases[birth.phase].name == "forward"
            and deaths.get(number, len(trace.events)) >= trace.phases[birth.phase + 1].event
        ):
            categories.append(MemoryCategory.ACTIVATIONS)
        else:
            categories.append(MemoryCategory.TEMPORARIES)
    return categories


def _high_water_marks(trace: Trace, sizes: Sequence[int], ends: Sequence[int]) -> dict[str, tuple[int, int]]:
    """Return the high-water mark of each phase of the second step, and the number of events before it."""
    first = trace.phases[trace.last_step].event
    live_bytes = _sum(trace.events[:first], sizes)
    marks: dict[str, tuple[int, int]] = {}
    begin = first
    for phase, end in zip(trace.phases[trace.last_step : -1], ends, strict=True):
        mark = max(marks.get(phase.name, (0, begin)), (live_bytes, begin))
        for at in range(begin, end):
            event = trace.events[at]
            live_bytes += sizes[event] if event >= 0 else -sizes[~event]
            if live_bytes > mark[0]:
                mark = (live_bytes, at + 1)
        marks[phase.name] = mark
        begin = end
    return marks


def _sum(events: Iterable[int], sizes: Sequence[int]) -> int:
    return sum(sizes[event] if event >= 0 else -sizes[~event] for event in events)


def _parts_after(
    events: Sequence[int], sizes: Sequence[int], categories: Sequence[MemoryCategory], counts: set[int]
) -> dict[int, Parts]:
    """Return the live bytes by category after each number of events in `counts`."""
    live = [0] * len(_AT)
    parts = {0: tuple(live)} if 0 in counts else {}
    for at, event in enumerate(events, start=1):
        number = event if event >= 0 else ~event
        live[_AT[categories[number]]] += sizes[number] if event >= 0 else -sizes[number]
        if at in counts:
            parts[at] = tuple(live)
    return parts


def _modules(
    trace: Trace, sizes: Sequence[int], categories: Sequence[MemoryCategory], forward: int, optimizer: int
) -> tuple[ModuleBytes, ...]:
    """Return weights, gradients and optimizer state at the begin of the optimizer, and activations at the end
    of the (last) forward pass; modules without any of these are omitted."""
    module_bytes: dict[str, list[int]] = {}

    def add(path: str, at: int, number: int) -> None:
        module_bytes.setdefault(path, [0, 0, 0, 0])[at] += sizes[number]

    columns = {MemoryCategory.WEIGHTS: 0, MemoryCategory.GRADIENTS: 1, MemoryCategory.OPTIMIZER: 2}
    for number in _living(trace.events[:optimizer]):
        path, column = trace.modules.get(number), columns.get(categories[number])
        if path is not None and column is not None:
            add(path, column, number)
    for number in _living(trace.events[:forward]):
        if categories[number] is MemoryCategory.ACTIVATIONS:
            add(trace.births[number].module or "", 3, number)
    return tuple(
        ModuleBytes(path, _kind(module), *module_bytes[path])
        for path, module in trace.model.named_modules()
        if path in module_bytes
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
