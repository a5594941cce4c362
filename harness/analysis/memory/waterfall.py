"""Memory breakdown of a device from one sample: bars that sum to the device's memory.

A sample nests: allocated ⊂ reserved ⊂ this process ⊂ all processes ⊂ the card. Each bar is the difference of
one reading and the next inner one that was measured; where a reading is missing, the two adjacent bars are
one, with a name that says so. The readings come from several sources at slightly different times and may
contradict each other. The inner reading, from the allocator, then takes precedence: each outer one is raised
to it, up to the card's size, and the largest such correction is reported with the bars.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from harness.records.memory import MemorySampleRow, ModuleMemoryRow


class MemoryPart(StrEnum):
    """Part of a device's memory, from the outside in. A bar of several parts has the place of the first."""

    OTHERS = "others"
    CONTEXT = "context"
    UNUSED = "unused"
    SPLIT = "split"
    WAITING = "waiting"
    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    RETAINED = "retained"
    ACTIVATIONS = "activations"
    # Parts that were not measured separately.
    UNDIVIDED = "undivided"
    FREE = "free"


class MemoryBar(NamedTuple):
    """One bar of the breakdown; `meaning` explains it in one sentence."""

    place: MemoryPart
    name: str
    size_bytes: int
    meaning: str


class Waterfall(NamedTuple):
    """The bars, free memory last; their sizes sum to `total_bytes`."""

    bars: tuple[MemoryBar, ...]
    total_bytes: int
    # Largest contradiction between readings; 0 without one.
    disputed_bytes: int

    def share(self, bar: MemoryBar) -> float:
        """The bar's share of the total."""
        return bar.size_bytes / self.total_bytes


class _Nest(NamedTuple):
    """A sample's readings, each at least as large as those inside it; None where not measured."""

    total: int
    used: int | None
    process: int | None
    reserved: int | None
    allocated: int | None
    disputed: int

    @property
    def heap(self) -> int | None:
        """The outermost reading of the allocator."""
        return self.allocated if self.reserved is None else self.reserved


def waterfall(
    sample: MemorySampleRow | None,
    modules: Sequence[ModuleMemoryRow],
    is_cpu: bool,
    level_bytes: int | None = None,
) -> Waterfall | None:
    """The breakdown of a sample. `modules` are the newest census of the model and break down the allocated
    bytes; `level_bytes` are those allocated between two steps, None: unknown. Returns None where the device's
    size, or every reading inside it, is unknown."""
    if sample is None or not sample.total_bytes or sample.total_bytes < 0:
        return None
    nest = _nested(sample)
    if nest.used is None and nest.process is None and nest.heap is None:
        return None
    inside, disputed = _unused(sample, nest, is_cpu)
    bars = [
        *_outside(nest, is_cpu),
        *inside,
        *_allocated(nest, modules, is_cpu, level_bytes),
        *_free(nest, is_cpu),
    ]
    return Waterfall(
        tuple(bar for bar in bars if bar.size_bytes > 0), nest.total, max(nest.disputed, disputed)
    )


def _nested(sample: MemorySampleRow) -> _Nest:
    total = sample.total_bytes or 0
    least = disputed = 0
    nested: list[int | None] = []
    for reading in (sample.allocated_bytes, sample.reserved_bytes, sample.process_bytes, sample.used_bytes):
        if reading is None:
            nested.append(None)
            continue
        least = min(total, max(reading, least))
        disputed = max(disputed, abs(least - reading))
        nested.append(least)
    allocated, reserved, process, used = nested
    return _Nest(total, used, process, reserved, allocated, disputed)


def _outside(nest: _Nest, is_cpu: bool) -> list[MemoryBar]:
    """Memory outside the allocator."""
    own = "Python and libraries" if is_cpu else "context and libraries"
    own_meaning = (
        "Memory of this process outside its heap: Python, torch and other libraries."
        if is_cpu
        else "Memory of this process outside the allocator: the CUDA context, kernels and libraries."
    )
    if is_cpu and nest.reserved is None:
        own = "Python, libraries and free heap"
    others = "Memory of other processes, as reported by the system."
    heap = nest.heap
    if heap is None:
        used = nest.used if nest.process is None else nest.process
        name = "all processes, not broken down" if nest.process is None else "this process, not broken down"
        bars = [MemoryBar(MemoryPart.UNDIVIDED, name, used or 0, "The allocator does not report its memory.")]
        if nest.used is not None and nest.process is not None:
            bars.insert(0, MemoryBar(MemoryPart.OTHERS, "other processes", nest.used - nest.process, others))
        return bars
    if nest.process is not None:
        bars = [MemoryBar(MemoryPart.CONTEXT, own, nest.process - heap, own_meaning)]
        if nest.used is not None:
            bars.insert(0, MemoryBar(MemoryPart.OTHERS, "other processes", nest.used - nest.process, others))
        return bars
    if nest.used is not None:
        meaning = "The system reports the memory of all processes, but not of this one."
        return [MemoryBar(MemoryPart.OTHERS, f"other processes, {own}", nest.used - heap, meaning)]
    return []


def _free(nest: _Nest, is_cpu: bool) -> list[MemoryBar]:
    if nest.used is not None:
        meaning = "Not in use" + (", or a cache that the system frees on demand." if is_cpu else ".")
        return [MemoryBar(MemoryPart.FREE, "free", nest.total - nest.used, meaning)]
    inner = nest.heap if nest.process is None else nest.process
    name = "other processes or free"
    if nest.process is None:
        name = f"{'Python' if is_cpu else 'context'}, libraries, {name}"
    meaning = "The system does not report the memory of all processes, so free memory is unknown too."
    return [MemoryBar(MemoryPart.UNDIVIDED, name, nest.total - (inner or 0), meaning)]


def _unused(sample: MemorySampleRow, nest: _Nest, is_cpu: bool) -> tuple[list[MemoryBar], int]:
    """Reserved memory that is not allocated, and the contradiction of its parts with their sum."""
    if nest.reserved is None:
        return [], 0
    if nest.allocated is None:
        meaning = "Reserved by the allocator; the allocated part is unknown."
        return [MemoryBar(MemoryPart.UNDIVIDED, "reserved, not broken down", nest.reserved, meaning)], 0
    unused = nest.reserved - nest.allocated
    if is_cpu:
        meaning = "Freed by tensors and cached in the heap for the next; empty_cache releases whole pages."
        return [MemoryBar(MemoryPart.UNUSED, "free in the heap", unused, meaning)], 0
    if sample.free_bytes is None or sample.split_free_bytes is None:
        meaning = "Cached by the allocator for the next tensors; its blocks are unknown."
        return [MemoryBar(MemoryPart.UNUSED, "reserved, unused", unused, meaning)], 0
    free = min(sample.free_bytes, unused)
    split = min(sample.split_free_bytes, unused - free)
    bars = [
        MemoryBar(
            MemoryPart.UNUSED,
            "reserved, whole blocks",
            free,
            "Cached by the allocator for the next tensors, in blocks that empty_cache() releases.",
        ),
        MemoryBar(
            MemoryPart.SPLIT,
            "reserved, split remainders",
            split,
            "Free parts of split blocks that also contain tensors: they serve smaller tensors only, and "
            "empty_cache() cannot release them. A large part is a sign of fragmentation.",
        ),
        MemoryBar(
            MemoryPart.WAITING,
            "reserved, waiting or private",
            unused - free - split,
            "Freed, but another stream may still read it; or in private pools (CUDA graphs, MemPool).",
        ),
    ]
    return bars, sample.free_bytes + sample.split_free_bytes - free - split


def _allocated(
    nest: _Nest, modules: Sequence[ModuleMemoryRow], is_cpu: bool, level_bytes: int | None
) -> list[MemoryBar]:
    """Allocated memory, by category as far as the census of the model covers it."""
    if nest.allocated is None:
        return []
    if not modules:
        meaning = (
            "Memory of tensors. Their categories are known after the first census of the model's modules."
        )
        return [MemoryBar(MemoryPart.UNDIVIDED, "allocated, not broken down", nest.allocated, meaning)]
    bars = [
        MemoryBar(
            MemoryPart.WEIGHTS,
            "weights and buffers",
            sum(row.parameter_bytes + row.buffer_bytes for row in modules),
            "The model's parameters and buffers, which stay as long as it does.",
        )
    ]
    unmeasured = []
    gradients, optimizer = (
        _sum([row.gradient_bytes for row in modules]),
        _sum([row.optimizer_bytes for row in modules]),
    )
    if optimizer is None:
        unmeasured.append("optimizer state")
    else:
        meaning = "State per parameter: two numbers for Adam, none for SGD without momentum."
        bars.append(MemoryBar(MemoryPart.OPTIMIZER, "optimizer state", optimizer, meaning))
    rest = nest.allocated - sum(bar.size_bytes for bar in bars)
    if rest < 0:
        meaning = "Memory of tensors, less than at the last census of the model, so its parts do not add up."
        return [MemoryBar(MemoryPart.UNDIVIDED, "allocated, not broken down", nest.allocated, meaning)]
    if gradients is not None and gradients <= rest:
        meaning = "One number per trained parameter, from the backward pass to zero_grad()."
        bars.insert(1, MemoryBar(MemoryPart.GRADIENTS, "gradients", gradients, meaning))
        rest -= gradients
    else:
        unmeasured.insert(0, "gradients")
    return [*bars, *_of_step(nest.allocated, rest, unmeasured, is_cpu, level_bytes)]


def _of_step(
    allocated: int, rest: int, unmeasured: list[str], is_cpu: bool, level_bytes: int | None
) -> list[MemoryBar]:
    """The `rest` of the allocated memory: what is in use between two steps too, and what the step under way
    has allocated."""
    retained = "data and other tensors that the program retains, " + (
        "objects of Python, and buffers of libraries" if is_cpu else "and workspaces of libraries"
    )
    used = "tensors saved by the forward pass for the backward pass, and intermediate results"
    names = "retained between steps", "activations and temporaries"
    if level_bytes is None or unmeasured:
        meaning = f"All other memory: {retained}; {used}."
        return [MemoryBar(MemoryPart.ACTIVATIONS, ", ".join([*unmeasured, *names]), rest, meaning)]
    retained_bytes = min(rest, max(0, level_bytes - (allocated - rest)))
    retained_meaning = f"In use after a step, too: {retained}."
    used_meaning = f"Of the step under way at this moment: {used}."
    return [
        MemoryBar(MemoryPart.RETAINED, names[0], retained_bytes, retained_meaning),
        MemoryBar(MemoryPart.ACTIVATIONS, names[1], rest - retained_bytes, used_meaning),
    ]


def _sum(sizes: Sequence[int | None]) -> int | None:
    """The sum of the known sizes; None without one."""
    values = [size for size in sizes if size is not None]
    return sum(values) if values else None
