"""The parts of a watch that exist before the training: log and feed, clocks, recorder, memory."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.analysis.timing.overhead import ASYNCHRONOUS, SYNCHRONOUS, BlockPlan
from harness.device.protocol import Device, DeviceClock
from harness.records.run import DeviceKind, StepRow
from harness.store.inserts import Row
from harness.watch.context import Journal, Marks, Progress, RunContext, warning
from harness.watch.guard import FailureGuard
from harness.watch.inbox import Inbox
from harness.watch.jobs.leaks import Readings
from harness.watch.memory import MemoryWatch
from harness.watch.overhead import OverheadMeter
from harness.watch.recorder import Recorder
from harness.watch.reference import ReferenceWork
from harness.watch.tee import Feed, tee

DROPPED = "stopped working and was dropped"


class Instruments(NamedTuple):
    """The parts from which the rest of a watch is built. `now_ns` is the raw clock, `captures` the folder of
    snapshots and profiles; `step_finished` is called with the number of every step."""

    context: RunContext
    now_ns: Callable[[], int]
    device_clock: DeviceClock | None
    inbox: Inbox
    memory: MemoryWatch
    recorder: Recorder
    readings: Readings
    meter: OverheadMeter
    captures: Path
    step_finished: Callable[[int], None]


def open_instruments(
    device: Device,
    now_ns: Callable[[], int],
    inbox: Inbox,
    captures: Path,
    put: Callable[[Row], None],
    open_journal: Callable[[Feed, Callable[[], int]], Journal],
    *,
    is_behind: Callable[[], bool] = lambda: False,
    step_finished: Callable[[int], None] = lambda _step: None,
    plan: BlockPlan | None = None,
    memory: MemoryWatch | None = None,
) -> Instruments:
    """Create the instruments of a run that starts now. `put` receives rows before `open_journal(feed,
    clock_ns)` opens the journal; `is_behind` returns whether rows wait because the log is not written. Tests
    pass a `memory` that reads every step."""
    zero_ns = now_ns()
    progress, marks = Progress(zero_ns), Marks()

    def clock_ns() -> int:
        return now_ns() - zero_ns

    def dropped(name: str, error: str) -> None:
        message = f"{name} {DROPPED} ({error}); training goes on."
        put(warning(clock_ns(), progress.last_step, name, message))

    guard, device_clock = FailureGuard(dropped), device.clock()
    memory = memory or MemoryWatch(device)
    is_cpu = device.facts.kind is DeviceKind.CPU
    reference = ReferenceWork(put) if is_cpu else None
    recorder = Recorder(
        memory, marks, put, zero_ns, reference=reference, has_device_clock=device_clock is not None
    )
    readings = Readings(is_behind)
    meter = OverheadMeter(plan or (SYNCHRONOUS if is_cpu else ASYNCHRONOUS), put)
    consumers = {"leak readings": readings.add_rows, "overhead": meter.add_rows}
    journal = open_journal(tee(_feed(recorder, device), guard.run, consumers), clock_ns)
    context = RunContext(device, journal, clock_ns, guard, progress, marks)
    return Instruments(
        context, now_ns, device_clock, inbox, memory, recorder, readings, meter, captures, step_finished
    )


def _feed(recorder: Recorder, device: Device) -> Feed:
    """Return the function that the writer's thread polls. torch's current GPU is each thread's own."""
    if device.facts.kind is DeviceKind.CPU:
        return recorder.collect

    def collect() -> Sequence[StepRow]:
        device.activate_in_background()
        return recorder.collect()

    return collect
