"""The cards above the live chart: rows in, texts and sparklines out.

Every figure is from the newest steps. Missing ones read "n/a", with the reason as their help.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from dashboard.buckets import BucketTable, sparkpoint, tail
from harness import words
from harness.analysis.memory.pressure import TIGHT, VERY_TIGHT
from harness.analysis.memory.readings import newest_reading
from harness.analysis.timing.throughput import samples_per_s
from harness.records.floats import decode_float
from harness.records.run import EXCLUDED_FLAGS, DeviceKind, DeviceSampleRow, StepRow

# Share of a step spent waiting for data above which the figure turns amber.
_STARVED = 0.20
NO_SAMPLES = "their number of samples is unknown. In a script of your own, iterate over `run.steps(batches)`"
_NO_LOADER = (
    "No DataLoader delivered batches for these steps. In a script of your own, iterate over "
    "`run.steps(batches)` to measure the wait for each batch."
)


class Card(NamedTuple):
    """One figure in the row above the chart. `spark` holds None where nothing was measured."""

    key: str
    label: str
    value: str
    note: str
    # "plain", "good", "warn" or "bad": the color of the note.
    tone: str
    help: str
    color: str
    spark: Sequence[float | None]
    bounds: tuple[float, float] | None = None
    missing: bool = False


class LiveCardData(NamedTuple):
    """The data of the cards. `missing` maps "memory", "util" and "loss" to the reason without data."""

    recent: Sequence[StepRow]
    device: BucketTable
    sample: DeviceSampleRow | None
    kind: DeviceKind | None
    limit_bytes: int | None
    missing: Mapping[str, str]


def cards(source: LiveCardData) -> list[Card]:
    """Build all cards, in their order on the page."""
    makers = (_allocated, _reserved, _peak, _step_time, _data_wait, _util, _loss)
    return [maker(source) for maker in makers]


def _series(source: LiveCardData, figure: Callable[[StepRow], float | None]) -> list[float | None]:
    return [sparkpoint(figure(row)) for row in source.recent]


def _readings(source: LiveCardData, figure: Callable[[StepRow], float | None]) -> list[float | None]:
    """Return `_series` without the steps at which memory was not read, so that the line joins readings."""
    return [point for point in _series(source, figure) if point is not None]


def _calm(source: LiveCardData) -> Sequence[StepRow]:
    return [row for row in source.recent if not row.flags & EXCLUDED_FLAGS] or source.recent


def _none(key: str, label: str, color: str, reason: str) -> Card:
    return Card(key, label, words.NOT_AVAILABLE, "", "plain", reason, color, [], missing=True)


def _steps(of_steps: Sequence[object]) -> str:
    return words.plural(len(of_steps), "step")


def _allocated(source: LiveCardData) -> Card:
    label = "Allocated"
    values = [row.allocated_bytes for row in source.recent if row.allocated_bytes is not None]
    if not values:
        return _none("allocated", label, "allocated", source.missing.get("memory", "no step"))
    drift = values[-1] - statistics.median(values)
    steady = abs(drift) < 0.005 * max(values[-1], 1)
    note = "steady" if steady else f"{'↑' if drift > 0 else '↓'} {words.size(abs(drift))}"
    if 2 * len(values) < len(source.recent):  # A few readings of the same moment show no drift.
        note = ""
    text = "Memory of live tensors at the end of the last step; the note compares it with earlier steps."
    spark = _readings(source, lambda row: row.allocated_bytes)
    return Card("allocated", label, words.size(values[-1]), note, "plain", text, "allocated", spark)


def _reserved(source: LiveCardData) -> Card:
    is_cpu = source.kind is DeviceKind.CPU
    label = "Process memory" if is_cpu else "Reserved"
    last = source.recent[-1] if source.recent else None
    if last is None or last.reserved_bytes is None:
        return _none("reserved", label, "reserved", source.missing.get("memory", "no step"))
    note, read = "", newest_reading(source.recent)
    if read is not None and read.allocated_bytes is not None and read.reserved_bytes is not None:
        rest = read.reserved_bytes - read.allocated_bytes
        # Pages of a tensor that were never written are allocated and not resident.
        note = f"{words.size(abs(rest))} {('other' if rest >= 0 else 'not resident') if is_cpu else 'cached'}"
    text = (
        "Resident memory of the training process; tensors are a part of it, once they have been written."
        if is_cpu
        else "Memory reserved by torch's allocator; the part not allocated is cached for later tensors."
    )
    spark = _series(source, lambda row: row.reserved_bytes)
    return Card("reserved", label, words.size(last.reserved_bytes), note, "plain", text, "reserved", spark)


def _peak(source: LiveCardData) -> Card:
    peaks = [row.peak_allocated_bytes for row in source.recent if row.peak_allocated_bytes is not None]
    if not peaks:
        return _none("peak", "Peak", "peak", source.missing.get("memory", "no step"))
    highest = max(peaks)
    note, tone = "", "plain"
    if source.limit_bytes:
        left = source.limit_bytes - highest
        share = highest / source.limit_bytes
        tone = "bad" if share >= VERY_TIGHT else "warn" if share >= TIGHT else "plain"
        note = f"{words.size(max(left, 0))} headroom"
    text = f"Highest allocated memory within {peak_steps(source.recent)}; headroom is the rest of the limit."
    spark = _readings(source, lambda row: row.peak_allocated_bytes)
    return Card("peak", "Peak", words.size(highest), note, tone, text, "peak", spark)


def peak_steps(recent: Sequence[StepRow]) -> str:
    """Return the steps that a peak is of: "the last 72 steps", or how many of these have a reading."""
    read = sum(row.peak_allocated_bytes is not None for row in recent)
    of_steps = f"the last {_steps(recent)}"
    return of_steps if read == len(recent) else f"{words.count(read)} of {of_steps}"


def _step_time(source: LiveCardData) -> Card:
    rows = _calm(source)
    if not rows:
        return _none("step", "Step time", "step", "no step")
    middle = statistics.median(row.step_ns for row in rows)
    rate = samples_per_s(rows)
    note = "" if rate is None else words.rate(rate)
    throughput = "their throughput" if note else f"no throughput: {NO_SAMPLES}"
    text = f"Median of the last {_steps(rows)}, without warm-up and transition steps; {throughput}."
    spark = _series(source, lambda row: row.step_ns)
    return Card("step", "Step time", words.duration(middle), note, "plain", text, "step", spark)


def _data_wait(source: LiveCardData) -> Card:
    rows = _calm(source)
    total_ns = sum(row.step_ns for row in rows)
    if not total_ns:
        return _none("data_wait", "Data wait", "data_wait", "no step")
    wait_ns = sum(row.data_wait_ns for row in rows)
    if not wait_ns:  # Without a loader the log has 0, which nothing measured.
        return _none("data_wait", "Data wait", "data_wait", _NO_LOADER)
    share = wait_ns / total_ns
    note = words.duration(statistics.median(row.data_wait_ns for row in rows))
    tone = "warn" if share > _STARVED else "plain"
    text = "Share of step time spent waiting for the DataLoader, and the median wait."
    spark = _series(source, lambda row: row.data_wait_ns)
    value = words.percent(100 * share)
    return Card("data_wait", "Data wait", value, note, tone, text, "data_wait", spark)


def _util(source: LiveCardData) -> Card:
    is_cpu = source.kind is DeviceKind.CPU
    label = "CPU util" if is_cpu else "GPU util"
    sample = source.sample
    if sample is None or sample.util_pct is None:
        return _none("util", label, "util", source.missing.get("util", "no sample"))
    note = ""
    if sample.power_w is not None:
        note = f"{sample.power_w:.0f} W"
    if sample.temperature_c is not None:
        note += f"{' · ' if note else ''}{sample.temperature_c:.0f} °C"
    text = "Share of the last second in which the device was busy, with its power and temperature."
    spark = tail(source.device.band("util_pct").mean, len(source.recent) or 72)
    value = words.percent(sample.util_pct)
    return Card("util", label, value, note, "plain", text, "util", spark, bounds=(0, 100))


def _loss(source: LiveCardData) -> Card:
    losses = [decode_float(row.loss, row.loss_state) for row in source.recent]
    values = [loss for loss in losses if loss is not None]
    if not values:
        reason = f"no loss in the last {_steps(losses)}" if losses else "no step"
        return _none("loss", "Loss", "loss", source.missing.get("loss", reason))
    finite = [loss for loss in values if sparkpoint(loss) is not None]
    note, tone = "", "plain"
    if sparkpoint(values[-1]) is None:
        note, tone = "not finite", "bad"
    elif len(finite) >= 8:
        half = len(finite) // 2
        drift = statistics.fmean(finite[half:]) - statistics.fmean(finite[:half])
        note = f"{'↑' if drift > 0 else '↓'} {words.figure(abs(drift), 2)}" if drift else "unchanged"
    text = f"Loss of the last step, and the change of its mean within the last {_steps(values)}."
    spark = [sparkpoint(loss) for loss in losses]
    return Card("loss", "Loss", words.figure(values[-1], 3), note, tone, text, "loss", spark)
