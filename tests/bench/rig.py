"""A real run's parts put together in this process: what `harness.run` builds, minus a process of its own."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch

from harness.analysis.timing.own_cost import SYNCHRONOUS
from harness.config import change
from harness.data.source import open_source
from harness.device.cpu import CpuDevice
from harness.device.host import CpuTelemetry, HostProbe
from harness.models.building import build_model
from harness.observers.commands import CommandPoll
from harness.observers.dispatch import Dispatcher, Guard, Progress
from harness.observers.leaks import LOOK_PERIOD_S, Readings, open_leak_watch
from harness.observers.own_cost import OwnCostMeter
from harness.observers.passing import Feed, passing
from harness.observers.peak import PeakWatch
from harness.observers.recorder import Recorder
from harness.observers.sampler import Job, Sampler, every
from harness.observers.stall import StallWatch
from harness.observers.telemetry import TelemetryRecorder
from harness.records import CommandKind, CommandRow
from harness.run import COMMAND_PERIOD_S, HEARTBEAT_PERIOD_S, SAMPLE_PERIOD_S
from harness.selection import resolve
from harness.store.control import ControlLog
from harness.store.folder import RunFolder
from harness.store.liveness import Liveness
from harness.store.writer import LogWriter
from harness.train.control import Controller
from harness.train.inbox import Inbox
from harness.train.journal import Marks
from harness.train.loop import train
from harness.train.memory import MemoryWatch
from harness.train.readback import LossReader
from harness.train.timing import StepTimer
from harness.train.unobserved import Unobserved
from harness.train.workload import Workload
from tests.store_factories import a_run

_SETTLE_S = 0.02
"""What was under way when the gate closed is done by then."""


def cpu_workload(device: CpuDevice, **values: Any) -> Workload:
    """A catalogue model in training on this CPU."""
    settings = resolve(values)
    source = open_source(settings)
    torch.manual_seed(0)
    device.begin_memory()
    return Workload(settings, device, build_model(settings, source.shape), source)


class Parts(NamedTuple):
    """What the training loop calls of ours."""

    conductor: Controller
    timer: StepTimer
    losses: LossReader
    listener: Dispatcher
    unobserved: Unobserved


class Gate:
    """Holds back what watches a run while something else is measured: for the samplers time stands still,
    and the writer takes no steps."""

    def __init__(self) -> None:
        self._is_open = threading.Event()
        self._is_open.set()
        self._held_s = 0.0

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Until the end of the context nothing of what watches the run is at work."""
        closed_s = time.monotonic()
        self._is_open.clear()
        time.sleep(_SETTLE_S)
        try:
            yield
        finally:
            self._held_s += time.monotonic() - closed_s
            self._is_open.set()

    def clock_s(self) -> float:
        """A monotonic clock without the time meanwhile, in which it keeps who asks waiting: a sampler that
        was told the same time again and again would wake up as often."""
        self._is_open.wait()
        return time.monotonic() - self._held_s

    def held(self, feed: Feed) -> Feed:
        """`feed`, which has nothing to give meanwhile: the writer still asks, four times a second."""
        return lambda: feed() if self._is_open.is_set() else ()


class Recording:
    """Everything that watches a run, alive while the context lasts: the writer over a real file, both
    samplers at their real periods, and a control file as it is once somebody has used it."""

    def __init__(self, workload: Workload, device: CpuDevice, folder: Path) -> None:
        self._workload = workload
        self._device = device
        self._run = RunFolder(folder)
        self._stack = ExitStack()
        self._zero_ns = time.perf_counter_ns()
        self.gate = Gate()
        self.errors: list[str] = []

    def __enter__(self) -> Self:
        enter = self._stack.enter_context
        guard = Guard(lambda name, error: self.errors.append(f"{name}: {error}"))
        self._inbox, self._marks, progress = Inbox(), Marks(), Progress(self._zero_ns)
        self._progress = progress
        with ControlLog(self._run) as control:
            control.send(CommandRow("first", 1, CommandKind.RESUME, "{}", "bench"))
        self._memory = MemoryWatch(self._device)
        self.recorder = Recorder(
            self._memory, self._marks, lambda event: self.journal.put(event), self._zero_ns
        )
        readings = Readings()
        self._meter = OwnCostMeter(SYNCHRONOUS, lambda row: self.journal.put(row))
        takers = {"leak readings": readings.take, "own cost": self._meter.take}
        feed = passing(self.recorder.collect, guard.run, takers)
        self.journal = enter(LogWriter(self._run.log, a_run(), self.gate.held(feed), self._clock_ns))
        self._alive = alive = enter(Liveness.hold(self._run.alive))
        telemetry = TelemetryRecorder(
            [CpuTelemetry()],
            HostProbe(self._workload.worker_pids),
            self.journal,
            self._clock_ns,
            lambda: progress.last_step,
        )
        self.leaks = open_leak_watch(
            readings,
            self._device,
            self._workload.worker_pids,
            lambda: self._workload.settings.memory_cap_bytes,
            self.journal,
            self._clock_ns,
            lambda: progress.last_step,
        )
        stall = StallWatch(progress, lambda: False, self.journal, self._clock_ns, 60.0)
        peak = PeakWatch(self._device, progress, self._clock_ns)
        poll = CommandPoll(self._run, self._inbox)
        vital = [
            Job("heartbeat", every(HEARTBEAT_PERIOD_S), alive.beat),
            Job("commands", every(COMMAND_PERIOD_S), poll.poll),
        ]
        watching = [
            Job("leak detector", every(LOOK_PERIOD_S), self.leaks.check),
            Job("telemetry", every(SAMPLE_PERIOD_S), telemetry.sample),
            Job("stall watch", every(SAMPLE_PERIOD_S), stall.check),
            Job("peak", peak.pause_s, peak.look),
        ]
        self._stack.callback(poll.close)
        enter(Sampler(vital, guard, self.gate.clock_s))
        enter(Sampler(watching, guard, self.gate.clock_s))
        self._dispatcher = Dispatcher({"recorder": self.recorder}, guard, progress)
        self._losses = LossReader.of(self._device.torch_device)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def log(self) -> Path:
        """The log, which can be read while it is written and afterwards."""
        return self._run.log

    @property
    def last_step(self) -> int:
        """The newest step."""
        return self._progress.last_step

    def train(self, steps: int, around: Callable[[Parts], None] = lambda _: None) -> None:
        """Take so many steps, exactly as a run does. Once only: steps are numbered from 1. `around` may wrap
        what the loop calls."""
        workload, clock = self._workload, time.perf_counter_ns
        workload.settings = change(workload.settings, {"max_steps": steps})
        timer = StepTimer(clock, None, self._memory)
        controller = Controller(
            workload,
            self._device,
            self.journal,
            self._inbox,
            self._marks,
            timer,
            self._memory,
            self._clock_ns,
            step_finished=self._alive.signs.step_finished,
        )
        unobserved = Unobserved(
            SYNCHRONOUS,
            workload,
            timer,
            self._marks,
            self._progress,
            self._meter.block_ended,
            zero_ns=self._zero_ns,
        )
        around(Parts(controller, timer, self._losses, self._dispatcher, unobserved))
        train(workload, controller, timer, self._losses, self._dispatcher, unobserved=unobserved)
        unobserved.close()

    def _clock_ns(self) -> int:
        return time.perf_counter_ns() - self._zero_ns
