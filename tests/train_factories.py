"""Factories for tests of the training process: a clock to turn, a journal to read, a small workload."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch

from harness.analysis.timing.overhead import BlockPlan
from harness.data.source import open_source
from harness.device.protocol import Device
from harness.device.testing.device import FAKE_FACTS, FakeDevice
from harness.models.building import build_model
from harness.records.run import (
    AckRow,
    AmpMode,
    CommandKind,
    CommandRow,
    DeviceFacts,
    DeviceKind,
    EventRow,
    RunState,
    SettingsRow,
)
from harness.settings.resolve import resolve
from harness.tracking.history import AllocatorHistory
from harness.train.workload import Workload
from harness.watch.context import Marks, Progress, RunContext
from harness.watch.dispatch import StepListener
from harness.watch.guard import FailureGuard
from harness.watch.inbox import Inbox
from harness.watch.instruments import Instruments, open_instruments
from harness.watch.live_settings import LiveSettings
from harness.watch.measuring import Measuring
from harness.watch.memory import MemoryWatch
from harness.watch.steps import Steps
from harness.watch.tee import Feed
from harness.watch.timing import StepTimer, Times

NOWHERE = Path("/nonexistent")
CPU_FACTS = FAKE_FACTS._replace(
    kind=DeviceKind.CPU, ordinal=None, uuid=None, name="Test CPU", amp_modes=(AmpMode.OFF, AmpMode.BF16)
)


class Clock:
    """A clock in nanoseconds that moves only when told, or by `tick_ns` each time it is read."""

    def __init__(self, tick_ns: int = 0) -> None:
        self.now_ns = 0
        self.tick_ns = tick_ns

    def __call__(self) -> int:
        self.now_ns += self.tick_ns
        return self.now_ns


class FakeJournal:
    """Keeps what is put, and how the run ended."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.durable: list[Any] = []
        self.states: list[RunState] = []
        self.messages: list[str] = []
        self.end: tuple[RunState, str, int] | None = None
        self.feed: Feed = tuple

    def take_feed(self, feed: Feed, _clock_ns: Callable[[], int]) -> Self:
        """Stand in for a log's writer, which polls `feed`."""
        self.feed = feed
        return self

    def put(self, row: Any) -> None:
        self.rows.append(row)

    def put_durable(self, row: Any) -> bool:
        self.durable.append(row)
        self.put(row)
        return True

    def set_state(self, state: RunState, message: str, timeout_s: float = 0.0) -> bool:
        self.states.append(state)
        self.messages.append(message)
        return True

    def finish(self, state: RunState, message: str, ended_unix_ns: int, *, has_event: bool = False) -> bool:
        assert self.end is None
        self.end = (state, message, ended_unix_ns)
        return True

    def flush(self, timeout_s: float) -> bool:
        return True

    def of(self, kind: type) -> list[Any]:
        return [row for row in self.rows if type(row) is kind]

    @property
    def acks(self) -> list[AckRow]:
        return self.of(AckRow)

    @property
    def events(self) -> list[EventRow]:
        return self.of(EventRow)

    @property
    def settings(self) -> list[SettingsRow]:
        return self.of(SettingsRow)


class OpenSteps(NamedTuple):
    """A watch's steps, what they are made of, and what changes the workload's settings."""

    instruments: Instruments
    live: LiveSettings
    steps: Steps
    measuring: Measuring


def open_steps(
    device: Device,
    workload: Workload,
    journal: FakeJournal,
    captures: Path = NOWHERE,
    *,
    now_ns: Callable[[], int] = time.perf_counter_ns,
    inbox: Inbox | None = None,
    plan: BlockPlan | None = None,
    memory: MemoryWatch | None = None,
    listeners: Mapping[str, StepListener] | None = None,
    history: AllocatorHistory | None = None,
) -> OpenSteps:
    """The training thread's half of a watch over `workload`, without threads and files."""
    instruments = open_instruments(
        device,
        now_ns,
        inbox or Inbox(),
        captures,
        journal.put,
        journal.take_feed,
        plan=plan,
        memory=memory,
    )
    live = LiveSettings(instruments.context, workload)
    measuring = Measuring(instruments.context, live)
    steps = Steps(instruments, workload, [live, measuring], listeners, history)
    return OpenSteps(instruments, live, steps, measuring)


class Watched:
    """A small workload in training, and the steps of a watch over it, without threads and files."""

    def __init__(
        self,
        device: FakeDevice | None = None,
        captures: Path = NOWHERE,
        *,
        now_ns: Callable[[], int] | None = None,
        inbox: Inbox | None = None,
        plan: BlockPlan | None = None,
        listeners: Mapping[str, StepListener] | None = None,
        history: AllocatorHistory | None = None,
        **values: Any,
    ) -> None:
        self.device = device or a_device()
        self.workload = a_workload(self.device, **values)
        self.journal, self.inbox = FakeJournal(), inbox or Inbox()
        self.clock = now_ns if isinstance(now_ns, Clock) else Clock()
        self.instruments, self.live, self.steps, self.measuring = open_steps(
            self.device,
            self.workload,
            self.journal,
            captures,
            now_ns=now_ns or self.clock,
            inbox=self.inbox,
            plan=plan,
            listeners=listeners,
            history=history,
        )
        self.context, self.memory = self.instruments.context, self.instruments.memory
        self.marks, self.progress = self.context.marks, self.context.progress
        self.controller, self.timer = self.steps.controller, self.steps.timer

    @property
    def dropped(self) -> list[str]:
        """Return what broke and was dropped."""
        return [event.label for event in self.journal.events if "was dropped" in event.message]

    def close(self) -> None:
        """Take everything off the workload, and close it."""
        self.steps.close()
        self.workload.close()


class SteppedRun(Watched):
    """A small run, a step at a time, that takes snapshots and profiles into `captures` on request."""

    def __init__(self, captures: Path, device: FakeDevice | None = None, **values: Any) -> None:
        super().__init__(device, captures, now_ns=Clock(tick_ns=1000), **values)
        self.snapshots, self.profiles = self.steps.snapshots, self.steps.profiles
        self.step = 0
        self.flags: dict[int, int] = {}

    def run(self, steps: int, within: Callable[[], None] = lambda: None) -> None:
        """Take so many steps, and do something more at the end of each."""
        for _ in range(steps):
            if not self.controller.proceed(self.step + 1):
                return
            self.step += 1
            self.flags[self.step] = self.marks.flags
            self.step_begins()
            a_step(self.workload)
            self.workload.tidy(self.step)
            within()

    def step_begins(self) -> None:
        """Called as each step begins."""


@dataclass
class LoopSteps:
    """The part of a watch that a loop calls, with stand-ins."""

    proceed: Callable[[int], bool]
    step_ended: Callable[..., None]
    timer: StepTimer


def a_device(facts: DeviceFacts = CPU_FACTS) -> FakeDevice:
    """A device that torch reaches as the CPU."""
    return FakeDevice(facts)


def a_workload(device: Device | None = None, **values: Any) -> Workload:
    """The smallest cataloged model on handwritten digits, in training; seeded."""
    settings = resolve({"model": "mlp", "batch_size": 8, **values})
    source = open_source(settings)
    torch.manual_seed(settings.seed)
    return Workload(settings, device or a_device(), build_model(settings, source.shape), source)


def a_step(workload: Workload) -> float:
    """Take one whole step; returns its loss."""
    for _ in range(workload.micro_batches):
        workload.backward(workload.forward(*workload.to_device(workload.next_batch())))
    workload.update()
    return float(workload.loss)


def a_context(
    device: Device | None = None,
    journal: FakeJournal | None = None,
    clock_ns: Callable[[], int] | None = None,
    progress: Progress | None = None,
    guard: FailureGuard | None = None,
) -> RunContext:
    """Return what the parts of a watch share."""
    return RunContext(
        device or a_device(),
        journal or FakeJournal(),
        clock_ns or Clock(),
        guard or FailureGuard(lambda *_: None),
        progress or Progress(),
        Marks(),
    )


def a_command(
    kind: str = CommandKind.SET, payload: str = "{}", command_id: str = "c1", source: str = "the test"
) -> CommandRow:
    return CommandRow(command_id, 1, kind, payload, source)


def some_times(end_ns: int = 1_000, step_ns: int = 1_000) -> Times:
    """A step's times; its phases take 1, 2, 3, 4 and 5 ns."""
    start_ns = end_ns - step_ns
    return (start_ns, *(start_ns + mark for mark in (0, 1, 3, 6, 10, 15)), end_ns)


def raising(error: BaseException) -> Callable[..., Any]:
    """A function that raises `error` however it is called."""

    def function(*_args: object, **_kwargs: object) -> Any:
        raise error

    return function
