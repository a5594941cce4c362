"""The history of a run before an out-of-memory error, from its own log."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from harness.analysis.leak import wording
from harness.analysis.leak.growth import CALM, RISING
from harness.analysis.oom.report import BatchPeak, LeakSign, RecentChange, RecentStep
from harness.analysis.recent_change import recent_change
from harness.analysis.shortage import sentences_on_shortage
from harness.errors import LogError
from harness.records.memory import LeakRow, LeakSeries, LeakVerdict, SnapshotReason, SnapshotRow
from harness.records.run import AmpMode, SettingsRow, StepFlag, StepRow
from harness.settings.spec import SPECS
from harness.store.reader import LogReader
from harness.watch.oom.growth import growing_memory
from harness.watch.training import WatchSettings

# Steps listed in the report.
STEPS = 50
_STEPS_FOR_PEAKS = 3_000
# Samples of the host, one per second, before the end of a loader's worker is noticed: torch looks every five.
_SAMPLES = 8

_SERIES_ON_GPU = (LeakSeries.ALLOCATED, LeakSeries.FRAGMENTATION)
_SERIES_ON_CPU = (LeakSeries.ALLOCATED, LeakSeries.HOST, LeakSeries.FRAGMENTATION)
_SERIES_OF_WORKERS = (LeakSeries.WORKERS,)


class RunHistory(NamedTuple):
    """History read from the log; empty where the log has none."""

    steps: tuple[RecentStep, ...] = ()
    peaks: tuple[BatchPeak, ...] = ()
    change: RecentChange | None = None
    leak: LeakSign | None = None
    # That of the loader's workers.
    worker_leak: LeakSign | None = None
    # The growth of live memory in the newest steps.
    growth: LeakSign | None = None
    # Memory of other processes at the newest sample.
    others_bytes: int | None = None
    # The settings that the run has: all, or those of a script. Empty without a version of the settings.
    names: frozenset[str] = frozenset()

    def has(self, name: str) -> bool:
        """Return whether the run is known to have a setting."""
        return name in self.names


def read_history(path: Path, step: int, settings: WatchSettings, *, on_cpu: bool) -> RunHistory:
    """Read from the log at `path` the history before `step`, which failed under `settings`."""
    try:
        with LogReader(path) as log:
            rows, history = log.last_steps(_STEPS_FOR_PEAKS), log.settings_history()
            leaks, sample = log.memory.leaks(), log.memory.latest_sample()
            snapshots = log.memory.snapshots()
    except (LogError, ValueError):
        return RunHistory()
    others = None
    if sample is not None and sample.used_bytes is not None and sample.process_bytes is not None:
        others = max(0, sample.used_bytes - sample.process_bytes)
    growth = growing_memory(rows)
    series = _SERIES_ON_CPU if on_cpu else _SERIES_ON_GPU
    return RunHistory(
        steps=tuple(_recent(row) for row in rows[-STEPS:]),
        peaks=batch_peaks(rows, history, settings),
        change=recent_change(history, step),
        leak=leak_sign(leaks, snapshots, step, on_cpu, series),
        worker_leak=leak_sign(leaks, snapshots, step, on_cpu, _SERIES_OF_WORKERS),
        growth=None if growth is None else _sign(growth, growth, snapshots, step, on_cpu, is_certain=False),
        others_bytes=others,
        names=frozenset(history[-1].values) if history else frozenset(),
    )


def read_shortage(path: Path, *, on_cpu: bool) -> str:
    """Read from the log at `path` whether memory was short in the last seconds."""
    try:
        with LogReader(path) as log:
            samples = log.last_host_samples(_SAMPLES, 0)
            return sentences_on_shortage(samples, log.memory.current_leaks(), on_cpu=on_cpu)
    except LogError:
        return ""


def batch_peaks(
    rows: list[StepRow], history: list[SettingsRow], settings: WatchSettings
) -> tuple[BatchPeak, ...]:
    """Return the highest peak per batch size, of steps under otherwise the current settings. Warm-up steps
    are left out, unless there are no others: then the first one is, in which the optimizer state does not
    exist yet, and all with fp16, which may skip the first updates. So is the last one before a change if it
    has other samples than the one before: where a script opens another loader, its first step has the version
    of the old one. So is a batch size if all of its steps have fewer samples, as the first one after a change
    has, with a batch loaded before it, or the last one of an epoch. A script may have no setting of its batch
    size."""
    values_in_effect = settings.model_dump(mode="json")
    batch_sizes: dict[int, int] = {}
    for version in history:
        values = version.values
        differing = {name for name in SPECS if name in values and values[name] != values_in_effect[name]}
        is_same = all(not SPECS[name].affects_peak for name in differing - {"batch_size"})
        if is_same and "batch_size" in values:
            batch_sizes[version.version] = values["batch_size"]
    starts = {version.step for version in history}
    is_early = settings.amp != AmpMode.FP16 and all(row.flags & StepFlag.WARM_UP for row in rows)
    peaks_bytes: dict[int, list[int]] = {}
    trained: set[int] = set()
    samples: int | None = None
    for row in rows:
        is_of_next, samples = row.step + 1 in starts and row.samples != samples, row.samples
        size, peak_bytes = batch_sizes.get(row.settings_version), row.peak_allocated_bytes
        has_no_state = row.step == 1 if is_early else row.flags & StepFlag.WARM_UP
        if is_of_next or size is None or peak_bytes is None or has_no_state:
            continue
        peaks_bytes.setdefault(size, []).append(peak_bytes)
        if not 0 < row.samples < size:  # 0: unknown.
            trained.add(size)
    return tuple(BatchPeak(size, max(peaks_bytes[size]), len(peaks_bytes[size])) for size in sorted(trained))


def leak_sign(
    leaks: list[LeakRow],
    snapshots: list[SnapshotRow],
    step: int,
    on_cpu: bool,
    among: Sequence[LeakSeries] = _SERIES_ON_CPU,
) -> LeakSign | None:
    """Return the current leak as of `step`, of several the largest; without one, the largest growth under
    watch. Only the series `among` count: growth elsewhere is no reason for an out-of-memory error.

    A change of settings restarts the detector, which clears no leak before it could detect it again.
    """
    called: dict[str, LeakRow] = {}
    watched: dict[str, LeakRow] = {}
    began: dict[str, LeakRow] = {}
    for row in leaks:
        if row.verdict == LeakVerdict.LEAK:
            called[row.series] = row
        elif row.verdict in CALM and (row.series not in called or row.withdraws(called[row.series])):
            called.pop(row.series, None)
            began.pop(row.series, None)
        if row.verdict == LeakVerdict.WATCH:
            watched[row.series] = row
        else:
            watched.pop(row.series, None)
        # The newer half of the history may be the clearer evidence of a growth that began long before.
        if row.verdict in RISING and row.since_step <= began.get(row.series, row).since_step:
            began[row.series] = row
    for group in (called, watched):
        signs = [
            _sign(group[series], began[series], snapshots, step, on_cpu, is_certain=group is called)
            for series in among
            if series in group
        ]
        if signs:
            return max(signs, key=lambda sign: sign.leaked_bytes or 0)
    return None


def _sign(
    row: LeakRow, began: LeakRow, snapshots: list[SnapshotRow], step: int, on_cpu: bool, *, is_certain: bool
) -> LeakSign:
    """Return the sign of the newest verdict on a series, `row`; `began` is that on the beginning of its
    growth."""
    slope = row.bytes_per_step
    if slope is None or not math.isfinite(slope):
        return LeakSign(row.series, row.message, None, is_certain=is_certain, cause=row.cause)
    hunts = [s.message for s in snapshots if s.reason == SnapshotReason.LEAK and s.step >= began.since_step]
    is_hunted = row.series == LeakSeries.ALLOCATED and bool(hunts)
    # That cause is the result of the hunt, which says it with figures.
    is_said_by_hunt = is_hunted and row.cause == wording.BESIDE_TENSORS
    return LeakSign(
        series=row.series,
        message=wording.growth(row, on_cpu, began.since_step),
        bytes_per_step=slope,
        since_step=began.since_step,
        leaked_bytes=round((began.risen_bytes or 0) + slope * max(0, step - began.step)),
        hunt=hunts[-1] if is_hunted else None,
        is_certain=is_certain,
        cause=None if is_said_by_hunt else row.cause,
    )


def _recent(row: StepRow) -> RecentStep:
    return RecentStep(
        row.step, row.step_ns, row.allocated_bytes, row.peak_allocated_bytes, row.reserved_bytes
    )
