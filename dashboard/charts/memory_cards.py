"""The Memory page's cards: the current state of the allocator, each figure with a sparkline."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from dashboard.buckets import sparkpoint
from dashboard.charts.cards import Card, peak_steps
from harness import words
from harness.records.memory import MemorySampleRow
from harness.records.run import StepRow

_SPARK = 72
# Share of reserved memory that is unused at the peak above which the figure turns amber.
_FRAGMENTED = 0.5


class MemoryCardData(NamedTuple):
    """The data of the cards."""

    recent: Sequence[StepRow]
    samples: Sequence[MemorySampleRow]
    latest: MemorySampleRow | None
    is_cpu: bool


def cards(source: MemoryCardData) -> list[Card]:
    """Build all cards, in their order on the page."""
    return [
        _allocated(source),
        _peak(source),
        _reserved(source),
        _unused(source),
        _largest(source),
        _blocks(source),
        _retries(source),
    ]


def _none(key: str, label: str, color: str, reason: str) -> Card:
    return Card(key, label, words.NOT_AVAILABLE, "", "plain", reason, color, [], missing=True)


def _spark(source: MemoryCardData, figure: Callable[[MemorySampleRow], float | None]) -> list[float | None]:
    return [sparkpoint(figure(row)) for row in source.samples[-_SPARK:]]


def _allocated(source: MemoryCardData) -> Card:
    values = [step.allocated_bytes for step in source.recent if step.allocated_bytes is not None]
    sampled = source.latest
    if sampled is not None and sampled.allocated_bytes is not None:
        values.append(sampled.allocated_bytes)
    else:
        sampled = None
    if not values:
        return _none(
            "allocated", "Allocated", "allocated", f"The memory of tensors is unknown: {_why(source)}."
        )
    text, note = "Memory of live tensors at the latest memory sample.", "in tensors"
    if source.is_cpu:
        text = "Memory in use on the heap since the run began: tensors, and what else programs allocate."
        note = "in use"
    last = source.recent[-1].step if source.recent else 0
    if sampled is not None and 0 < sampled.step < last:  # Beside the newer figure of the Live page.
        note = f"at step {words.count(sampled.step)}"
    spark = _spark(source, lambda sample: sample.allocated_bytes)
    return Card("allocated", "Allocated", words.size(values[-1]), note, "plain", text, "allocated", spark)


def _peak(source: MemoryCardData) -> Card:
    peaks = [step.peak_allocated_bytes for step in source.recent if step.peak_allocated_bytes is not None]
    if not peaks:
        return _none("peak", "Peak", "peak", f"The peak within a step is unknown: {_why(source)}.")
    highest = max(peaks)
    read_at = peak_steps(source.recent)
    text = f"Highest allocated memory within {read_at}"
    sampled = None if source.latest is None else source.latest.allocated_bytes
    if sampled is not None and sampled > highest:  # The peaks of a CPU are the highest of a few readings.
        highest, text = sampled, f"{text}, or at the latest memory sample, which is higher"
    spark = [sparkpoint(peak) for peak in peaks]  # Joins the readings.
    note = read_at.removeprefix("the ")
    return Card("peak", "Peak", words.size(highest), note, "plain", f"{text}.", "peak", spark)


def _reserved(source: MemoryCardData) -> Card:
    label = "Heap" if source.is_cpu else "Reserved"
    row = source.latest
    if row is None or row.reserved_bytes is None:
        return _none("reserved", label, "reserved", _unknown(source, "its reserved memory"))
    where = "malloc's heap" if source.is_cpu else "the caching allocator"
    text = f"Memory that {where} has from the system: in use by tensors, or cached for later ones."
    segments = words.NOT_AVAILABLE if row.segments is None else words.plural(row.segments, "segment")
    spark = _spark(source, lambda sample: sample.reserved_bytes)
    note = "mapped and free" if source.is_cpu else segments
    return Card("reserved", label, words.size(row.reserved_bytes), note, "plain", text, "reserved", spark)


def _unused_bytes(row: MemorySampleRow) -> int | None:
    if row.reserved_bytes is None or row.allocated_bytes is None:
        return None
    return max(0, row.reserved_bytes - row.allocated_bytes)


def _unused(source: MemoryCardData) -> Card:
    row = source.latest
    unused = None if row is None else _unused_bytes(row)
    if row is None or unused is None:
        return _none("unused", "Unused", "h2d", _unknown(source, "unused memory"))
    share = unused / max(1, row.reserved_bytes or 0)
    peaks = [step.peak_allocated_bytes for step in source.recent if step.peak_allocated_bytes is not None]
    idle = 0.0 if not peaks else max(0.0, 1 - max(peaks) / max(1, row.reserved_bytes or 0))
    tone = "warn" if idle > _FRAGMENTED and not source.is_cpu else "plain"
    text = (
        "Held by the allocator and not in use at the moment. Between two steps much of it is "
        "reused by the next step's activations; memory unused even at the peak is fragmentation."
    )
    note = f"{words.percent(100 * share)} of {'the heap' if source.is_cpu else 'reserved'}"
    return Card(
        "unused", "Unused", words.size(unused), note, tone, text, "h2d", _spark(source, _unused_bytes)
    )


def _largest(source: MemoryCardData) -> Card:
    row = source.latest
    if row is None or row.largest_free_bytes is None:
        reason = (
            "The CPU's heap does not list its free blocks by size."
            if source.is_cpu
            else _unknown(source, "its largest free block")
        )
        return _none("largest", "Largest free block", "step", reason)
    text = (
        "The largest tensor that fits without more memory from the device. Much unused memory with a small "
        "largest block indicates fragmentation."
    )
    spark = _spark(source, lambda sample: sample.largest_free_bytes)
    size = words.size(row.largest_free_bytes)
    return Card("largest", "Largest free block", size, "contiguous", "plain", text, "step", spark)


def _blocks(source: MemoryCardData) -> Card:
    row = source.latest
    if row is None or row.live_blocks is None:
        return _none("blocks", "Live blocks", "loss", _unknown(source, "the number of blocks in use"))
    text = "Blocks of the allocator in use, about one per tensor. A lasting rise indicates a leak."
    spark = _spark(source, lambda sample: sample.live_blocks)
    return Card("blocks", "Live blocks", words.count(row.live_blocks), "in use", "plain", text, "loss", spark)


def _retries(source: MemoryCardData) -> Card:
    steps = [step for step in source.recent if step.alloc_retries is not None]
    if not steps:
        reason = (
            "The CPU's allocator does not retry: an allocation succeeds or fails."
            if source.is_cpu
            else _unknown(source, "retries")
        )
        return _none("retries", "Retries", "peak", reason)
    last, lately = (
        steps[-1].alloc_retries or 0,
        (steps[-1].alloc_retries or 0) - (steps[0].alloc_retries or 0),
    )
    text = (
        "How often an allocation failed at first, so that the allocator released its cache and retried: each "
        "retry takes time and is the last sign before memory runs out."
    )
    note = f"{words.count(lately)} in the last {words.plural(len(steps), 'step')}"
    spark = [sparkpoint(step.alloc_retries) for step in steps]
    tone = "bad" if lately else "plain"
    return Card("retries", "Retries", words.count(last), note, tone, text, "peak", spark)


def _unknown(source: MemoryCardData, what: str) -> str:
    if source.latest is None:
        return "No memory sample; one is taken every few seconds while a run is active."
    return f"This device's allocator does not report {what}."


def _why(source: MemoryCardData) -> str:
    return "the last steps did not measure it" if source.recent else "no step has ended"
