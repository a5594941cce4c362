"""How a run stands with its memory, in one sentence: the worst that is known of it."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from harness import words
from harness.analysis.memory.alerts import standing
from harness.analysis.memory.pressure import Level, Pressure
from harness.memory_records import LeakRow, LeakSeries, LeakVerdict
from harness.records import EventRow, Severity, StepRow


class Standing(StrEnum):
    """How a run stands with its memory, the worst first."""

    OUT = "ran out of memory"
    LEAK = "leak"
    FRAGMENTING = "fragmenting"
    TIGHT = "under pressure"
    RECOVERED = "ran out, and went on"
    WATCH = "rising"
    FITS = "fits well"
    UNKNOWN = "not known"


class MemoryVerdict(NamedTuple):
    """The verdict, and why in one sentence for a person."""

    standing: Standing
    sentence: str


class Known(NamedTuple):
    """What there is to judge by."""

    pressure: Pressure | None
    leaks: Sequence[LeakRow]
    """Every verdict on a leak, in order."""
    ooms: Sequence[EventRow]
    """Every time memory ran out, in order."""
    recent: Sequence[StepRow]
    """The last steps, in order."""
    is_cpu: bool


def verdict(known: Known) -> MemoryVerdict:
    """The worst that is known."""
    for judge in (_out, _leak, _fragmenting, _tight, _recovered, _watch, _fits):
        found = judge(known)
        if found is not None:
            return found
    return MemoryVerdict(Standing.UNKNOWN, _unknown(known))


def _out(known: Known) -> MemoryVerdict | None:
    last = known.ooms[-1] if known.ooms else None
    if last is None or last.severity != Severity.ERROR:
        return None
    return MemoryVerdict(Standing.OUT, last.message)


def _leak(known: Known) -> MemoryVerdict | None:
    for row in standing(known.leaks):
        if row.verdict == LeakVerdict.LEAK:
            kind = Standing.FRAGMENTING if row.series == LeakSeries.FRAGMENTATION else Standing.LEAK
            return MemoryVerdict(kind, row.message)
    return None


def _fragmenting(known: Known) -> MemoryVerdict | None:
    """The allocator itself says so: it had to give its cache back to serve a request, again and again."""
    told = [row for row in known.recent if row.alloc_retries is not None]
    if len(told) < 2:
        return None
    first, last = told[0], told[-1]
    retries = (last.alloc_retries or 0) - (first.alloc_retries or 0)
    unused = (last.reserved_bytes or 0) - (last.peak_allocated_bytes or 0)
    if retries <= 0 or unused <= 0:
        return None
    return MemoryVerdict(
        Standing.FRAGMENTING,
        f"In the last {words.plural(last.step - first.step, 'step')} the allocator found no room for a "
        f"tensor {words.count(retries)} times and had to give its cache back, while {words.size(unused)} of "
        f"the {words.size(last.reserved_bytes)} it holds lay unused in pieces, even at the peak.",
    )


def _tight(known: Known) -> MemoryVerdict | None:
    pressure = known.pressure
    if pressure is None or pressure.level is Level.CALM:
        return None
    return MemoryVerdict(Standing.TIGHT, pressure.sentence)


def _recovered(known: Known) -> MemoryVerdict | None:
    if not known.ooms:
        return None
    often = "once" if len(known.ooms) == 1 else f"{len(known.ooms)} times"
    text = f"Memory ran out {often}, last in step {words.count(known.ooms[-1].step)}, and the run went on."
    return MemoryVerdict(Standing.RECOVERED, text)


def _watch(known: Known) -> MemoryVerdict | None:
    for row in standing(known.leaks):
        if row.verdict == LeakVerdict.WATCH:
            return MemoryVerdict(Standing.WATCH, row.message)
    return None


def _fits(known: Known) -> MemoryVerdict | None:
    pressure = known.pressure
    if pressure is None:
        return None
    needed, available = words.size(pressure.needed_bytes), words.size(pressure.available_bytes)
    peaks = [row.peak_allocated_bytes for row in known.recent if row.peak_allocated_bytes is not None]
    if known.is_cpu:
        text = f"All processes together use {needed} of this machine's {available}"
        text += f"; the last steps' tensors peaked at {words.size(max(peaks))}" if peaks else ""
    else:
        left = words.size(max(0, pressure.available_bytes - pressure.needed_bytes))
        text = (
            f"The last steps needed {needed} of the {available} that this run can have ({pressure.what}): "
            f"{left} to spare"
        )
    return MemoryVerdict(Standing.FITS, f"{text}{_no_leak(known)}.")


def _unknown(known: Known) -> str:
    if not known.recent:
        return "No step has ended, so nothing tells how much memory the run needs."
    peaks = [row.peak_allocated_bytes for row in known.recent if row.peak_allocated_bytes is not None]
    if not peaks:
        return "This device does not tell how much memory the steps need."
    return f"The last steps' tensors peaked at {words.size(max(peaks))}; how much there is was not read yet."


def _no_leak(known: Known) -> str:
    """That nothing leaks, where it was looked at long enough to say so."""
    calm = (LeakVerdict.STEADY, LeakVerdict.SAWTOOTH)
    rows = standing(known.leaks)
    return ", and nothing leaks" if rows and all(row.verdict in calm for row in rows) else ""
