"""Reads back from a run's own log what came before it ran out of memory."""

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from harness.analysis.oom.report import BatchPeak, LeakSign, RecentChange, RecentStep
from harness.config import SPECS
from harness.errors import LogError
from harness.memory_records import LeakRow, LeakSeries, LeakVerdict
from harness.records import SettingsRow, StepFlag, StepRow
from harness.settings import Settings
from harness.store.reader import LogReader
from harness.train import labels

STEPS = 50
"""Steps told one by one."""
_STEPS_FOR_PEAKS = 3_000
_CHANGE_WITHIN = 50


class Recollection(NamedTuple):
    """What the log says; empty where it says nothing."""

    steps: tuple[RecentStep, ...] = ()
    peaks: tuple[BatchPeak, ...] = ()
    change: RecentChange | None = None
    leak: LeakSign | None = None
    others_bytes: int | None = None
    """Held by other processes at the newest sample."""


def recall(path: Path, step: int, settings: Settings) -> Recollection:
    """What the log at `path` says about the time before `step`, which failed under `settings`."""
    try:
        with LogReader(path) as log:
            rows, history = log.last_steps(_STEPS_FOR_PEAKS), log.settings_history()
            leaks, sample = log.memory.standing_leaks(), log.memory.latest_sample()
    except (LogError, ValueError):
        return Recollection()
    others = None
    if sample is not None and sample.used_bytes is not None and sample.process_bytes is not None:
        others = max(0, sample.used_bytes - sample.process_bytes)
    return Recollection(
        steps=tuple(_recent(row) for row in rows[-STEPS:]),
        peaks=batch_peaks(rows, history, settings),
        change=recent_change(history, step),
        leak=leak_sign(leaks),
        others_bytes=others,
    )


def batch_peaks(rows: list[StepRow], history: list[SettingsRow], settings: Settings) -> tuple[BatchPeak, ...]:
    """The highest peak at each batch size, of steps under settings that are otherwise those in effect. The
    first steps are left out, when what the optimizer keeps does not exist yet."""
    wanted = settings.model_dump(mode="json")
    alike: dict[int, int] = {}
    for version in history:
        values = json.loads(version.settings)
        differing = {name for name in SPECS if values.get(name) != wanted[name]}
        if all(not SPECS[name].affects_peak for name in differing - {"batch_size"}):
            alike[version.version] = values["batch_size"]
    found: dict[int, list[int]] = {}
    for row in rows:
        is_known = row.peak_allocated_bytes is not None and not row.flags & StepFlag.WARM_UP
        if is_known and row.settings_version in alike:
            found.setdefault(alike[row.settings_version], []).append(row.peak_allocated_bytes or 0)
    return tuple(BatchPeak(size, max(peaks), len(peaks)) for size, peaks in sorted(found.items()))


def recent_change(history: list[SettingsRow], step: int) -> RecentChange | None:
    """The last change of settings before or at `step`, when it is not long ago."""
    for before, after in reversed(list(pairwise(history))):
        if 0 <= step - after.step <= _CHANGE_WITHIN:
            message = labels.sentence(json.loads(before.settings), json.loads(after.changed))
            return RecentChange(after.step, step - after.step, message, after.command_id)
    return None


def leak_sign(leaks: list[LeakRow]) -> LeakSign | None:
    """The leak that stands, one of live tensors before any other."""
    newest = {row.series: row for row in leaks}
    standing = [row for row in newest.values() if row.verdict == LeakVerdict.LEAK]
    standing.sort(key=lambda row: row.series != LeakSeries.ALLOCATED)
    if not standing:
        return None
    slope = standing[0].bytes_per_step
    is_finite = slope is not None and math.isfinite(slope)
    return LeakSign(standing[0].series, standing[0].message, slope if is_finite else None)


def _recent(row: StepRow) -> RecentStep:
    return RecentStep(
        row.step, row.step_ns, row.allocated_bytes, row.peak_allocated_bytes, row.reserved_bytes
    )
