"""Cuts all of a device's memory into bars that sum to it: who holds what, from one sample.

A sample nests: allocated ⊂ reserved ⊂ this process ⊂ all processes ⊂ the card. Each bar is what one of them
holds beyond the next inner one that was measured; where one is missing, its bar and its neighbour's are one,
under a name that says so. The readings come from several sources, moments apart, and may contradict each
other. Then the inner reading wins, being the allocator's own: whatever holds it is taken to be at least as
large, up to the card, and the largest such correction is told beside the bars.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from harness.memory_records import MemorySampleRow, ModuleMemoryRow


class Place(StrEnum):
    """Where memory is, from the outside in. A bar that joins several is placed by its first."""

    OTHERS = "others"
    CONTEXT = "context"
    UNUSED = "unused"
    SPLIT = "split"
    WAITING = "waiting"
    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    ACTIVATIONS = "activations"
    UNTOLD = "untold"
    """More than the places of this list would let tell apart."""
    FREE = "free"


class Bar(NamedTuple):
    """A part of the device's memory; `meaning` explains it in one sentence."""

    place: Place
    name: str
    size_bytes: int
    meaning: str


class Waterfall(NamedTuple):
    """The bars, free memory last; their sizes sum to `total_bytes`."""

    bars: tuple[Bar, ...]
    total_bytes: int
    disputed_bytes: int
    """How far readings contradicted each other; 0: they did not."""

    def share(self, bar: Bar) -> float:
        """The bar's part of the whole."""
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
    sample: MemorySampleRow | None, modules: Sequence[ModuleMemoryRow], is_cpu: bool
) -> Waterfall | None:
    """The waterfall of a sample. `modules` are what the newest census of the model found, and tell the
    allocated bytes apart. None where the device's size, or everything inside it, is unknown."""
    if sample is None or not sample.total_bytes or sample.total_bytes < 0:
        return None
    nest = _nested(sample)
    if nest.used is None and nest.process is None and nest.heap is None:
        return None
    inside, disputed = _unused(sample, nest, is_cpu)
    bars = [*_outside(nest, is_cpu), *inside, *_allocated(nest, modules), *_free(nest, is_cpu)]
    kept = tuple(bar for bar in bars if bar.size_bytes > 0)
    return Waterfall(kept, nest.total, max(nest.disputed, disputed))


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


def _outside(nest: _Nest, is_cpu: bool) -> list[Bar]:
    """What lies outside the allocator."""
    own = "Python and libraries" if is_cpu else "context and libraries"
    own_meaning = (
        "What this process holds beside its heap: Python, torch and other libraries."
        if is_cpu
        else "What this process holds beside the allocator: CUDA's context, its kernels and its libraries."
    )
    if is_cpu and nest.reserved is None:
        own = "Python, libraries and free heap"
    others = "What other processes hold, as the system tells it."
    heap = nest.heap
    if heap is None:
        held = nest.used if nest.process is None else nest.process
        name = "all processes, not told apart" if nest.process is None else "this process, not told apart"
        bars = [Bar(Place.UNTOLD, name, held or 0, "Its allocator does not tell what it holds.")]
        if nest.used is not None and nest.process is not None:
            bars.insert(0, Bar(Place.OTHERS, "other processes", nest.used - nest.process, others))
        return bars
    if nest.process is not None:
        bars = [Bar(Place.CONTEXT, own, nest.process - heap, own_meaning)]
        if nest.used is not None:
            bars.insert(0, Bar(Place.OTHERS, "other processes", nest.used - nest.process, others))
        return bars
    if nest.used is not None:
        meaning = "The system tells what all processes hold, and not what this one does."
        return [Bar(Place.OTHERS, f"other processes, {own}", nest.used - heap, meaning)]
    return []


def _free(nest: _Nest, is_cpu: bool) -> list[Bar]:
    if nest.used is not None:
        meaning = "Held by nobody" + (", or a cache that the system gives up when asked." if is_cpu else ".")
        return [Bar(Place.FREE, "free", nest.total - nest.used, meaning)]
    inner = nest.heap if nest.process is None else nest.process
    known = "other processes or free"
    if nest.process is None:
        known = f"{'Python' if is_cpu else 'context'}, libraries, {known}"
    meaning = "The system does not tell what all processes hold, so what is free is not known either."
    return [Bar(Place.UNTOLD, known, nest.total - (inner or 0), meaning)]


def _unused(sample: MemorySampleRow, nest: _Nest, is_cpu: bool) -> tuple[list[Bar], int]:
    """What the allocator holds and no tensor uses, and by how much its parts contradict their sum."""
    if nest.reserved is None:
        return [], 0
    if nest.allocated is None:
        meaning = "Held by the allocator; how much of it tensors use is not known."
        return [Bar(Place.UNTOLD, "reserved, not told apart", nest.reserved, meaning)], 0
    unused = nest.reserved - nest.allocated
    if is_cpu:
        meaning = "Freed by tensors and kept in the heap for the next; empty_cache gives whole pages back."
        return [Bar(Place.UNUSED, "free in the heap", unused, meaning)], 0
    if sample.free_bytes is None or sample.split_free_bytes is None:
        meaning = "Kept by the allocator for the next tensors; how it is cut up is not known."
        return [Bar(Place.UNUSED, "reserved, unused", unused, meaning)], 0
    free = min(sample.free_bytes, unused)
    split = min(sample.split_free_bytes, unused - free)
    bars = [
        Bar(
            Place.UNUSED,
            "reserved, whole blocks",
            free,
            "Kept by the allocator for the next tensors, in blocks that empty_cache() gives back.",
        ),
        Bar(
            Place.SPLIT,
            "reserved, split remainders",
            split,
            "Left over beside tensors in blocks that were split: it serves smaller tensors only, and "
            "empty_cache() cannot give it back. Much of it is fragmentation.",
        ),
        Bar(
            Place.WAITING,
            "reserved, waiting or private",
            unused - free - split,
            "Freed, but another stream may still read it; or kept for CUDA graphs alone.",
        ),
    ]
    return bars, sample.free_bytes + sample.split_free_bytes - free - split


def _allocated(nest: _Nest, modules: Sequence[ModuleMemoryRow]) -> list[Bar]:
    """What tensors hold, by category as far as the model's census tells it."""
    if nest.allocated is None:
        return []
    if not modules:
        meaning = "Held by tensors. What kind they are is known after the first look at the model's modules."
        return [Bar(Place.UNTOLD, "allocated, not told apart", nest.allocated, meaning)]
    lasting = [
        Bar(
            Place.WEIGHTS,
            "weights and buffers",
            sum(row.parameter_bytes + row.buffer_bytes for row in modules),
            "The model's parameters and buffers, which stay as long as it does.",
        )
    ]
    untold = []
    gradients, optimizer = (
        _sum([row.gradient_bytes for row in modules]),
        _sum([row.optimizer_bytes for row in modules]),
    )
    if optimizer is None:
        untold.append("optimizer state")
    else:
        meaning = "What the optimizer remembers of each parameter: two numbers for Adam, none for plain SGD."
        lasting.append(Bar(Place.OPTIMIZER, "optimizer state", optimizer, meaning))
    rest = nest.allocated - sum(bar.size_bytes for bar in lasting)
    if rest < 0:
        meaning = "Held by tensors, fewer than when the model was last looked at, so its parts do not fit in."
        return [Bar(Place.UNTOLD, "allocated, not told apart", nest.allocated, meaning)]
    if gradients is not None and gradients <= rest:
        meaning = "One number for each parameter that is trained, from the backward pass to zero_grad()."
        lasting.insert(1, Bar(Place.GRADIENTS, "gradients", gradients, meaning))
        rest -= gradients
    else:
        untold.insert(0, "gradients")
    name = ", ".join([*untold, "activations and temporaries"])
    meaning = (
        "The rest of what tensors hold: saved by the forward pass for the backward pass, inputs, "
        "intermediate results, and whatever the program itself keeps."
    )
    return [*lasting, Bar(Place.ACTIVATIONS, name, rest, meaning)]


def _sum(sizes: Sequence[int | None]) -> int | None:
    """The sum of what is known; None when nothing is."""
    known = [size for size in sizes if size is not None]
    return sum(known) if known else None
