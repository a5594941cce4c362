"""The figures of one run that are exposed as metrics, from its summary and its log."""

import statistics
from collections.abc import Mapping
from typing import NamedTuple

from harness.errors import LogError
from harness.records.run import EXCLUDED_FLAGS, DeviceSampleRow, EventKind, Phase, StepRow
from harness.store.folder import RunFolder
from harness.store.reader import LogReader
from harness.store.series import StepSeries
from harness.supervisor.summary import RunSummary

QUANTILES = (0.5, 0.95, 0.99)
# The quantiles are those of the newest steps.
_RECENT_STEPS = 300
_STEP = "step_ns"
_NS_PER_S = 1e9
_EVENTS = frozenset(EventKind)


class Total(NamedTuple):
    """The number of measured values, and their sum in seconds."""

    values: int
    sum_s: float


class RunFigures(NamedTuple):
    """The figures of one run. Totals are those of all steps; a phase that was not measured is left out."""

    summary: RunSummary
    samples: int | None = None
    tokens: int | None = None
    non_finite_losses: int | None = None
    steps: Total | None = None
    # By phase and clock: "cpu" (issue time, for asynchronous devices) or "device".
    phases: Mapping[tuple[Phase, str], Total] = {}
    # By quantile, in seconds; empty with fewer than two steps.
    step_quantiles_s: Mapping[float, float] = {}
    newest: StepRow | None = None
    sample: DeviceSampleRow | None = None
    energy_j: float | None = None
    events: Mapping[str, int] = {}


def read_figures(folder: RunFolder, summary: RunSummary) -> RunFigures:
    """Read the figures of a run; of an unreadable log only the summary."""
    try:
        with LogReader(folder.log) as reader:
            return _read(reader, RunFigures(summary))
    except LogError:
        return RunFigures(summary)


def _read(reader: LogReader, figures: RunFigures) -> RunFigures:
    events = {kind: count for kind, count in reader.event_counts().items() if kind in _EVENTS}
    sample = _sample(reader, figures.summary)
    detail = None if sample is None else reader.telemetry.latest_detail(sample.device)
    figures = figures._replace(
        events=events, sample=sample, energy_j=None if detail is None else detail.energy_j
    )
    extent = reader.extent()
    if extent.first is None or extent.last is None:
        return figures
    columns = (_STEP, *(column for column in _PHASE_COLUMNS))
    series = reader.series(extent.first, extent.last, max_points=2, columns=columns)
    unobserved_samples, unobserved_tokens = reader.overhead.unobserved_work()
    totals = {column: _total(series, column) for column in columns}
    return figures._replace(
        samples=_sum(series, "samples_sum", unobserved_samples) or None,
        tokens=_sum(series, "tokens_sum", unobserved_tokens),
        non_finite_losses=_sum(series, "non_finite_sum", 0),
        steps=totals[_STEP],
        phases={key: total for name, key in _PHASE_COLUMNS.items() if (total := totals[name]) is not None},
        step_quantiles_s=_quantiles_s(reader, extent.last),
        newest=next(iter(reader.last_steps(1)), None),
    )


_PHASE_COLUMNS = {f"{phase}_ns": (phase, "cpu") for phase in Phase} | {
    f"device_{phase}_ns": (phase, "device") for phase in Phase if phase is not Phase.DATA_WAIT
}


def _total(series: StepSeries, column: str) -> Total | None:
    """Return the total of a time; None without steps, and where nothing measured it: then the log has 0."""
    count = sum(series.column(f"{column}_count"))
    sum_ns = sum(value for value in series.column(f"{column}_sum") if value is not None)
    return Total(count, sum_ns / _NS_PER_S) if count and sum_ns else None


def _sum(series: StepSeries, column: str, unobserved: int | None) -> int | None:
    values = [value for value in series.column(column) if value is not None]
    return int(sum(values)) + (unobserved or 0) if values else None


def _quantiles_s(reader: LogReader, last: int) -> dict[float, float]:
    rows = reader.step_times(last - _RECENT_STEPS + 1, last)
    rows = [row for row in rows if not row.flags & EXCLUDED_FLAGS] or rows
    if len(rows) < 2:
        return {}
    cuts = statistics.quantiles((row.step_ns / _NS_PER_S for row in rows), n=100, method="inclusive")
    return {quantile: cuts[round(quantile * 100) - 1] for quantile in QUANTILES}


def _sample(reader: LogReader, summary: RunSummary) -> DeviceSampleRow | None:
    """Return the newest sample of the training device."""
    uuid = None if summary.device is None else summary.device.uuid
    samples = {sample.device: sample for sample in reader.latest_device_samples()}
    return samples.get(uuid or "cpu")
