"""Reads the time of a range of steps from a run's log, long or short, at about the same cost."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from harness.analysis.timing.phases import LEFT_OUT, StepCost, Timing, analyse
from harness.analysis.timing.slow_steps import SlowStep, slowest
from harness.config import from_json
from harness.device.peaks import Peak, math_type, peak
from harness.errors import SettingError
from harness.flops_records import FlopsRow
from harness.records import DeviceFacts, DeviceKind, EventRow, SettingsRow, StepRow
from harness.settings import Settings
from harness.store.reader import LogReader

# Ranges of up to so many steps are read whole; of longer ones so many steps, evenly apart.
WHOLE = 6_000
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47)
_BUCKETS = 480
# Buckets of so many steps are read step by step.
_SMALL = 64
# So many of a long range's slowest buckets are looked into for their slowest steps.
_LOOKED_INTO = 10


class Arithmetic(NamedTuple):
    """What is known of the arithmetic under the settings in effect last."""

    flops: FlopsRow | None
    peak: Peak | None
    math_type: str | None
    # Why there is no MFU, in a sentence; empty where there is.
    reason: str

    @property
    def uncounted(self) -> Sequence[str]:
        """The operations that were not counted."""
        found: list[str] = [] if self.flops is None else json.loads(self.flops.uncounted)
        return found


class RunTiming(NamedTuple):
    """A range's timing and what stands beside it. `stride` is 1 where every step was read."""

    timing: Timing
    # The duration of each settled step that was read, in order.
    steps_ns: Sequence[int]
    slow: Sequence[SlowStep]
    stride: int
    # Under so many versions of the settings the steps were taken.
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
    """The steps from `first` to `last`, both included. Raises LogError."""
    flops = reader.flops()
    stride = apart(last - first + 1)
    rows = reader.steps(first, last) if stride == 1 else reader.steps_apart(first, last, stride)
    timing = analyse(rows, _costs(history, flops, device))
    candidates = rows if stride == 1 else [*rows, *_peaks(reader, first, last)]
    is_asynchronous = device is not None and device.kind is not DeviceKind.CPU
    shown = [row for row in history if row.step <= last] or history
    return RunTiming(
        timing,
        [row.step_ns for row in rows if not row.flags & LEFT_OUT],
        slowest(candidates, timing.cpu, events),
        stride,
        len({row.settings_version for row in rows}),
        _arithmetic(shown, flops, device),
        is_asynchronous,
    )


def apart(steps: int) -> int:
    """Which of so many steps are read: every one, or every n-th. A prime, so that what happens every 10 or 64
    steps is met as often as it happens."""
    stride = max(1, -(-steps // WHOLE))
    while stride > 1 and any(stride % prime == 0 and stride != prime for prime in _PRIMES):
        stride += 1
    return stride


def _peaks(reader: LogReader, first: int, last: int) -> list[StepRow]:
    """The slowest step of each of a long range's slowest buckets, read from the rollups."""
    found: list[StepRow] = []
    for begin, size in _slowest_buckets(reader, first, last, _LOOKED_INTO):
        while size > _SMALL:
            begin, size = _slowest_buckets(reader, begin, begin + size - 1, 1)[0]
        found += reader.steps(max(begin, first), min(begin + size - 1, last))
    return found


def _slowest_buckets(reader: LogReader, first: int, last: int, most: int) -> list[tuple[int, int]]:
    """First step and size of the buckets with the longest steps."""
    series = reader.series(first, last, _BUCKETS, ("step_ns",))
    table = zip(series.column("bucket"), series.column("size"), series.column("step_ns_max"), strict=True)
    ranked = sorted(table, key=lambda bucket: -(bucket[2] or 0))
    return [(begin, size) for begin, size, _ in ranked[:most]]


def _costs(
    history: Sequence[SettingsRow], flops: Sequence[FlopsRow], device: DeviceFacts | None
) -> dict[int, StepCost]:
    """What a sample costs under each version of the settings, as far as it is known."""
    by_way = {row.checkpointing: row.flops_or_none for row in flops}
    costs = {}
    for version in history:
        settings = _settings(version)
        model = by_way.get(0)
        if settings is None or model is None:
            continue
        executed = by_way.get(int(settings.activation_checkpointing)) or model
        found = None if device is None else peak(device, math_type(settings, device))
        costs[version.version] = StepCost(model, executed, None if found is None else found.flops_per_s)
    return costs


def _arithmetic(
    history: Sequence[SettingsRow], flops: Sequence[FlopsRow], device: DeviceFacts | None
) -> Arithmetic:
    settings = _settings(history[-1]) if history else None
    counted = next((row for row in flops if not row.checkpointing and row.flops_or_none), None)
    if counted is None:
        return Arithmetic(None, None, None, "The arithmetic of this run was not counted.")
    if settings is None or device is None:
        return Arithmetic(counted, None, None, "The device is not known.")
    if device.kind is DeviceKind.CPU:
        return Arithmetic(counted, None, None, "CPUs state no dense peak to compare with.")
    kind = math_type(settings, device)
    found = peak(device, kind)
    reason = "" if found is not None else f"The dense {kind} peak of {device.name} is not known here."
    return Arithmetic(counted, found, kind, reason)


def _settings(row: SettingsRow) -> Settings | None:
    try:
        return from_json(row.settings)
    except (SettingError, ValueError, TypeError):
        return None
