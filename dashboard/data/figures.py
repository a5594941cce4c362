"""The data of one tick of the live page: some hundreds of buckets, of which only the newest are read."""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from dashboard.data.runs import newest_command_id, supervisor
from dashboard.data.scalars import ScalarSeries, default_scalars, read_scalars
from harness.errors import LogError
from harness.records.measurement import Arm, MeasurementBlockRow
from harness.records.memory import LeakRow, MemorySampleRow
from harness.records.run import (
    RECORDED_FLAGS,
    DeviceFacts,
    DeviceSampleRow,
    EventKind,
    EventRow,
    StepFlag,
    StepRow,
)
from harness.store.folder import RunFolder
from harness.store.reader import CONTROLS, MOST_EVENTS, LogReader
from harness.store.series import StepSeries

# Three pixels per bucket on the widest chart.
MAX_BUCKETS = 480
# Buckets of device samples, which are taken once per second.
MAX_SAMPLES = 240
# Transitions are read only if buckets have at most this many steps: in longer ones they would be invisible.
SHADED = 4
# Steps of the cards and their sparklines.
RECENT_STEPS = 72
# More blocks of measurements than this are too narrow to be shaded each.
_MOST_SHADED_BLOCKS = 150
_SHADED_FLAGS = StepFlag.TRANSITION | RECORDED_FLAGS
DRAWN = (
    "step_ns",
    "data_wait_ns",
    "loss",
    "allocated_bytes",
    "reserved_bytes",
    "peak_allocated_bytes",
)
PHASES = (
    "h2d_ns",
    "forward_ns",
    "backward_ns",
    "optimizer_ns",
    "device_h2d_ns",
    "device_forward_ns",
    "device_backward_ns",
    "device_optimizer_ns",
)


class LogSource(NamedTuple):
    """The state from which the next tick continues instead of reading the whole log."""

    # Device and inode of the log.
    file: tuple[int, int]
    # The newest events, each with its id.
    events: Sequence[tuple[int, EventRow]]
    # The newest verdict on each series, with its id.
    leaks: Sequence[tuple[int, LeakRow]]


class Figures(NamedTuple):
    """The data of one tick."""

    steps: StepSeries | None
    device: StepSeries | None
    recent: Sequence[StepRow]
    events: Sequence[EventRow]
    transitions: Sequence[tuple[int, int]]
    sample: DeviceSampleRow | None
    sample_name: str | None
    first: int | None
    last: int | None
    memory: MemorySampleRow | None
    # The current verdicts.
    leaks: Sequence[LeakRow]
    # Every time memory ran out, in order.
    ooms: Sequence[EventRow]
    # The state for the next tick.
    source: LogSource
    # The names of all scalars of a script, and those that were read.
    scalar_names: Sequence[str] = ()
    scalars: Sequence[ScalarSeries] = ()
    # Blocks of measurements: first and last step, and whether under the changed settings.
    measured: Sequence[tuple[int, int, bool]] = ()


class Token(NamedTuple):
    """A cheap fingerprint of a run's log and state: a tick draws only when it has changed."""

    log: tuple[int, ...]
    newest_command_id: str
    state: str
    is_warning: bool
    is_notice: bool


def controls_stamp(token: Token) -> tuple[Any, ...]:
    """Return the part of a token that the controls depend on: settings version, results, requests, state."""
    return (*token.log[-CONTROLS:], token.newest_command_id, token.state, token.is_warning, token.is_notice)


def read_token(folder: RunFolder) -> Token:
    """Read the token of a run."""
    status = supervisor().status(folder)
    try:
        with LogReader(folder.log) as reader:
            stamp = reader.stamp()
    except LogError:
        stamp = ()
    return Token(stamp, newest_command_id(folder), status.state, status.is_warning, status.is_notice)


def figures(
    folder: RunFolder,
    device: DeviceFacts | None,
    steps_back: int | None,
    view: tuple[float, float] | None,
    phases: bool,
    before: Figures | None = None,
    scalars: Sequence[str] | None = None,
) -> Figures:
    """Read the data of a tick: the window or, zoomed in, the view with half its width on either side.

    `before` is the data of an earlier tick of the same run; it is not read again, so that a tick takes the
    same time at any length of a run. `scalars` are the names of those to read; None: the first ones.

    Raises LogError.
    """
    file = _file_of(folder)
    if before is not None and before.source.file != file:
        before = None
    with LogReader(folder.log) as reader:
        extent = reader.extent()
        source = LogSource(file, _events(reader, before), _leaks(reader, before))
        events = [event for _, event in source.events]
        sample = _sample(reader.latest_device_samples(), device)
        name = sample.device if sample is not None else None
        if extent.first is None or extent.last is None:
            return _without_steps(events, sample, source)
        first, last = _range(extent.first, extent.last, steps_back, view)
        earlier_steps = None if before is None else before.steps
        series = reader.series(first, last, MAX_BUCKETS, DRAWN + PHASES if phases else DRAWN, earlier_steps)
        telemetry = None
        if name is not None:
            earlier_samples = before.device if before is not None and before.sample_name == name else None
            telemetry = reader.device_series(name, first, last, MAX_SAMPLES, earlier_samples)
        transitions = reader.flagged(first, last, _SHADED_FLAGS) if series.bucket_size <= SHADED else []
        recent = reader.recent_steps(RECENT_STEPS)
        memory = reader.memory.latest_sample()
        names = reader.script.scalar_names()
        chosen = default_scalars(names) if scalars is None else [name for name in scalars if name in names]
        known_scalars = () if before is None else before.scalars
        measured = _shaded(reader.measurements.blocks_within(first, last))
        script_scalars = read_scalars(reader.script, chosen, first, last, known_scalars)
    leaks = [leak for _, leak in source.leaks]
    end = last + 1 if last == extent.last else last  # A step that failed is not in the log; its event is.
    inside = [event for event in events if first <= event.step <= end]
    ooms = [event for event in events if event.kind == EventKind.OOM]
    return Figures(
        steps=series,
        device=telemetry,
        recent=recent,
        events=inside,
        transitions=transitions,
        sample=sample,
        sample_name=name,
        first=first,
        last=extent.last,
        memory=memory,
        leaks=leaks,
        ooms=ooms,
        source=source,
        scalar_names=names,
        scalars=script_scalars,
        measured=measured,
    )


def _without_steps(events: Sequence[EventRow], sample: DeviceSampleRow | None, source: LogSource) -> Figures:
    """Return the data of a run before its first step."""
    return Figures(
        steps=None,
        device=None,
        recent=(),
        events=events,
        transitions=(),
        sample=sample,
        sample_name=None if sample is None else sample.device,
        first=None,
        last=None,
        memory=None,
        leaks=(),
        ooms=(),
        source=source,
    )


def _shaded(blocks: Sequence[MeasurementBlockRow]) -> list[tuple[int, int, bool]]:
    """Return the first and the last step of each block, and whether its arm is B; of many blocks those of
    each measurement as a whole, as if in arm A."""
    if len(blocks) <= _MOST_SHADED_BLOCKS:
        return [(block.first_step, block.last_step, block.arm == Arm.B) for block in blocks]
    steps: dict[int, list[int]] = {}
    for block in blocks:
        steps.setdefault(block.measurement, []).extend((block.first_step, block.last_step))
    return [(min(of_one), max(of_one), False) for of_one in steps.values()]


def _file_of(folder: RunFolder) -> tuple[int, int]:
    """Return device and inode of the log, which change when it is replaced; (0, 0) without a log."""
    try:
        status = os.stat(folder.log)
    except OSError:
        return 0, 0
    return status.st_dev, status.st_ino


def _events(reader: LogReader, before: Figures | None) -> Sequence[tuple[int, EventRow]]:
    if before is None or not before.source.events:
        return reader.events()
    earlier = before.source.events
    return [*earlier, *reader.events(earlier[-1][0])][-MOST_EVENTS:]


def _leaks(reader: LogReader, before: Figures | None) -> Sequence[tuple[int, LeakRow]]:
    earlier = [] if before is None else before.source.leaks
    newer = reader.memory.current_leaks_after(max((number for number, _ in earlier), default=0))
    standing = {leak.series: (number, leak) for number, leak in [*earlier, *newer]}
    return sorted(standing.values())


def _sample(samples: Sequence[DeviceSampleRow], device: DeviceFacts | None) -> DeviceSampleRow | None:
    """Return the sample of the device of the run."""
    device_key = None if device is None else device.uuid or device.kind.value
    return next(
        (sample for sample in samples if sample.device == device_key), samples[0] if samples else None
    )


def _range(
    first: int, last: int, steps_back: int | None, view: tuple[float, float] | None
) -> tuple[int, int]:
    if view is None:
        return (first if steps_back is None else max(first, last - steps_back + 1)), last
    margin = (view[1] - view[0]) / 2
    begin = max(first, int(view[0] - margin))
    return begin, max(begin, min(last, int(view[1] + margin) + 1))
