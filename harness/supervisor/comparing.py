"""Reads what a comparison of runs needs from their logs, in about the same time for any length of a run."""

import math
from collections.abc import Sequence
from statistics import fmean

from harness.analysis.compare.facts import ProfileKinds, RunFacts
from harness.analysis.effect.windows import SteadyStep
from harness.analysis.memory.readings import newest_level
from harness.analysis.memory.waterfall import Waterfall, waterfall
from harness.analysis.profiles import by_kind
from harness.errors import LogError, LogMissingError
from harness.records.floats import decode_float
from harness.records.memory import ModuleMemoryRow
from harness.records.run import EXCLUDED_FLAGS, DeviceKind, SettingsRow, StepRow
from harness.settings.recorded import read_recorded
from harness.store.folder import RunFolder
from harness.store.reader import LogReader
from harness.store.series import StepSeries
from harness.supervisor.origin import script_line
from harness.supervisor.summary import RunSummary
from harness.supervisor.timing import apart, read_timing

# The final loss is the mean of this many last steps.
FINAL_STEPS = 50
# Three pixels per bucket on the widest chart.
_MOST_BUCKETS = 480
_DRAWN = ("step_ns", "loss", "peak_allocated_bytes")
_PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes")


def read_facts(folder: RunFolder, summary: RunSummary) -> RunFacts:
    """Read a run for a comparison. A run without a log yet has no figures. Raises LogError."""
    facts = RunFacts(
        run_id=summary.run_id,
        name=summary.name,
        state=summary.status.state.value.replace("_", " "),
        is_simulated=summary.is_simulated,
        device=None if summary.device is None else summary.device.name,
        versions=summary.versions,
        settings={} if summary.settings is None else summary.settings.to_json(),
        changes=0,
        span=None,
        steps=0,
        timing=None,
        steady=(),
        peak_allocated_bytes=None,
        peak_reserved_bytes=None,
        final_loss=None,
        duration_s=None,
        profile=None,
        memory=None,
        script=None if summary.script is None else script_line(summary.script),
    )
    try:
        with LogReader(folder.log) as reader:
            return _read(reader, facts, summary)
    except LogMissingError:
        return facts


def read_curves(folder: RunFolder) -> StepSeries | None:
    """Read the curves of a run from its first step to its last; None without a step. Raises LogError."""
    try:
        with LogReader(folder.log) as reader:
            extent = reader.extent()
            if extent.first is None or extent.last is None:
                return None
            return reader.series(extent.first, extent.last, _MOST_BUCKETS, _DRAWN)
    except LogMissingError:
        return None


def _read(reader: LogReader, facts: RunFacts, summary: RunSummary) -> RunFacts:
    history = reader.settings_history()
    is_cpu = summary.device is not None and summary.device.kind is DeviceKind.CPU
    facts = facts._replace(
        changes=sum(row.is_change for row in history[1:]),
        profile=_profile(reader),
        memory=_memory(reader, is_cpu),
    )
    extent = reader.extent()
    if extent.first is None or extent.last is None:
        return facts
    version, first, last = _longest_version(history, extent.first, extent.last)
    settings = None if version is None else read_recorded(version.settings)
    stride = apart(last - first + 1)
    rows = reader.steps(first, last) if stride == 1 else reader.steps_apart(first, last, stride)
    ends = reader.steps(extent.first, extent.first) + reader.last_steps(1)
    peaks = reader.highest(extent.last, _PEAKS)
    return facts._replace(
        settings=facts.settings if settings is None else {**facts.settings, **settings.to_json()},
        span=(first, last),
        steps=extent.steps,
        timing=read_timing(reader, first, last, summary.device, history, ()).timing,
        steady=_steady(rows, stride),
        peak_allocated_bytes=peaks[0],
        peak_reserved_bytes=peaks[1],
        final_loss=_final_loss(reader.last_steps(FINAL_STEPS)),
        duration_s=(ends[-1].t_ns - ends[0].t_ns + ends[0].step_ns) / 1e9,
    )


def _longest_version(
    history: Sequence[SettingsRow], first: int, last: int
) -> tuple[SettingsRow | None, int, int]:
    """Return the version of the settings with the most steps, the later of equals, and those steps."""
    longest: tuple[SettingsRow | None, int, int] = (None, first, last)
    most = 0
    for at, row in enumerate(history):
        begin = max(first, row.step) if at else first
        end = min(last, history[at + 1].step - 1) if at + 1 < len(history) else last
        if end - begin + 1 >= max(1, most):
            most, longest = end - begin + 1, (row, begin, end)
    return longest


def _steady(rows: Sequence[StepRow], stride: int) -> list[SteadyStep]:
    """Return the steady-state steps. A step stands for the `stride` - 1 steps after it, which were not read;
    pauses between steps do not count as time."""
    return [
        SteadyStep(row.step, row.step_ns, row.samples, row.peak_allocated_bytes, stride, row.step_ns * stride)
        for row in rows
        if not row.flags & EXCLUDED_FLAGS and row.step_ns > 0
    ]


def _final_loss(rows: Sequence[StepRow]) -> float | None:
    losses = [loss for row in rows if (loss := decode_float(row.loss, row.loss_state)) is not None]
    if not losses:
        return None
    return fmean(losses) if all(map(math.isfinite, losses)) else math.nan


def _memory(reader: LogReader, is_cpu: bool) -> Waterfall | None:
    census: Sequence[ModuleMemoryRow] = ()
    for snapshot in reversed(reader.memory.snapshots()):
        if census := reader.memory.modules(snapshot.snapshot_id):
            break
    return waterfall(reader.memory.latest_sample(), census, is_cpu, newest_level(reader.recent_steps(1)))


def _profile(reader: LogReader) -> ProfileKinds | None:
    try:
        complete = [row for row in reader.profiles.all() if row.steps]
        if not complete:
            return None
        row = complete[-1]
        parts = by_kind(reader.profiles.operators(row.profile_id), row)
    except LogError:
        return None
    return ProfileKinds(row.first_step, row.steps, bool(row.on_device), row.wall_ns, parts)
