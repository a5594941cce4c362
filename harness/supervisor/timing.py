"""Reads the timing of a range of steps from a run's log, in about the same time for any length."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from harness.analysis.timing.phases import StepCost, Timing, analyze
from harness.analysis.timing.slow_steps import SlowStep, slowest
from harness.device.peaks import Peak, math_type, peak
from harness.records.flops import FlopsRow
from harness.records.run import EXCLUDED_FLAGS, DeviceFacts, DeviceKind, EventRow, SettingsRow, StepRow
from harness.records.script import PHASE_PREFIX
from harness.settings.recorded import read_recorded
from harness.store.reader import LogReader
from harness.store.script_log import ScriptLog

# Shorter ranges are read completely; of longer ones this number of evenly spaced steps is read.
WHOLE = 6_000
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47)
_BUCKETS = 480
# Buckets of up to this number of steps are read step by step.
_SMALL = 64
# The number of slowest buckets of a long range that are searched for their slowest steps.
_SEARCHED_BUCKETS = 10


class Arithmetic(NamedTuple):
    """The FLOPs and the peak under the last settings."""

    flops: FlopsRow | None
    peak: Peak | None
    math_type: str | None
    # The reason that there is no MFU, in a sentence; else empty.
    reason: str

    @property
    def uncounted(self) -> Sequence[str]:
        """The operations that were not counted."""
        operations: list[str] = [] if self.flops is None else json.loads(self.flops.uncounted)
        return operations


class RunTiming(NamedTuple):
    """A range's timing. `stride` is 1 if every step was read."""

    timing: Timing
    # The duration of each steady-state step that was read, in order.
    steps_ns: Sequence[int]
    slow: Sequence[SlowStep]
    stride: int
    # The number of versions of the settings in the range.
    versions: int
    arithmetic: Arithmetic
    is_asynchronous: bool


def read_timing(
    reader: LogReader,
    first: int,
    last: int,
    device: DeviceFacts | None,
    history: Sequence[SettingsRow],
    events: Sequence[EventRow],
) -> RunTiming:
    """Read the timing of the steps from `first` to `last`, both included. Raises LogError."""
    flops = reader.flops()
    stride = apart(last - first + 1)
    rows = reader.steps(first, last) if stride == 1 else reader.steps_apart(first, last, stride)
    timing = analyze(rows, _costs(history, flops, device))
    timing = timing._replace(own_phases_ns=_own_phases_ns(reader.script, max(first, last - WHOLE + 1), last))
    candidates = rows if stride == 1 else [*rows, *_peaks(reader, first, last)]
    is_asynchronous = device is not None and device.kind is not DeviceKind.CPU
    versions = [row for row in history if row.step <= last] or history
    return RunTiming(
        timing,
        [row.step_ns for row in rows if not row.flags & EXCLUDED_FLAGS],
        slowest(candidates, timing.cpu, events),
        stride,
        len({row.settings_version for row in rows}),
        _arithmetic(versions, flops, device),
        is_asynchronous,
    )


def _own_phases_ns(script: ScriptLog, first: int, last: int) -> dict[str, float]:
    """Return the mean time per step in each phase of a script's own, the longest first."""
    steps, means_ns = last - first + 1, {}
    for name in script.scalar_names():
        if name.startswith(PHASE_PREFIX):
            buckets = script.scalars(name, first, last, max_points=1)
            total_ms = sum(bucket.total or 0.0 for bucket in buckets)
            means_ns[name.removeprefix(PHASE_PREFIX)] = total_ms * 1e6 / steps
    return dict(sorted(means_ns.items(), key=lambda item: -item[1]))


def apart(steps: int) -> int:
    """Return the stride for reading this number of steps: 1 or a prime, so that events every 10 or 64 steps
    are sampled in proportion."""
    stride = max(1, -(-steps // WHOLE))
    while stride > 1 and any(stride % prime == 0 and stride != prime for prime in _PRIMES):
        stride += 1
    return stride


def _peaks(reader: LogReader, first: int, last: int) -> list[StepRow]:
    """Return the slowest steps of a long range's slowest buckets, read from the rollups."""
    steps: list[StepRow] = []
    for begin, size in _slowest_buckets(reader, first, last, _SEARCHED_BUCKETS):
        while size > _SMALL:
            begin, size = _slowest_buckets(reader, begin, begin + size - 1, 1)[0]
        steps += reader.steps(max(begin, first), min(begin + size - 1, last))
    return steps


def _slowest_buckets(reader: LogReader, first: int, last: int, most: int) -> list[tuple[int, int]]:
    """Return first step and size of the buckets with the longest steps."""
    series = reader.series(first, last, _BUCKETS, ("step_ns",))
    table = zip(series.column("bucket"), series.column("size"), series.column("step_ns_max"), strict=True)
    ranked = sorted(table, key=lambda bucket: -(bucket[2] or 0))
    return [(begin, size) for begin, size, _ in ranked[:most]]


def _costs(
    history: Sequence[SettingsRow], flops: Sequence[FlopsRow], device: DeviceFacts | None
) -> dict[int, StepCost]:
    """Return the FLOPs per sample under each version of the settings, where known."""
    by_checkpointing = {row.checkpointing: row.flops_or_none for row in flops}
    costs = {}
    for version in history:
        settings = read_recorded(version.settings)
        model = by_checkpointing.get(0)
        if settings is None or model is None:
            continue
        executed = by_checkpointing.get(int(settings.values.activation_checkpointing)) or model
        device_peak = None if device is None else peak(device, math_type(settings.values, device))
        costs[version.version] = StepCost(
            model, executed, None if device_peak is None else device_peak.flops_per_s
        )
    return costs


def _arithmetic(
    history: Sequence[SettingsRow], flops: Sequence[FlopsRow], device: DeviceFacts | None
) -> Arithmetic:
    settings = read_recorded(history[-1].settings) if history else None
    counted = next((row for row in flops if not row.checkpointing and row.flops_or_none), None)
    if counted is None:
        return Arithmetic(None, None, None, "The FLOPs of this run were not counted.")
    if settings is None or device is None:
        return Arithmetic(counted, None, None, "The device is unknown.")
    if device.kind is DeviceKind.CPU:
        return Arithmetic(counted, None, None, "There is no dense peak for CPUs.")
    kind = math_type(settings.values, device)
    device_peak = peak(device, kind)
    reason = "" if device_peak is not None else f"The dense {kind} peak of {device.name} is unknown."
    return Arithmetic(counted, device_peak, kind, reason)
