"""What tests of the training process share: a clock to turn, a journal to read, a small workload."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from harness.data.source import open_source
from harness.device.fakes import FAKE_FACTS, FakeDevice
from harness.device.protocol import Device
from harness.models.building import build_model
from harness.observers.dispatch import Guard
from harness.records import (
    AckRow,
    AmpMode,
    CommandKind,
    CommandRow,
    DeviceFacts,
    DeviceKind,
    EventRow,
    MemoryReading,
    RunState,
    SettingsRow,
)
from harness.selection import resolve
from harness.train.control import Controller
from harness.train.inbox import Inbox
from harness.train.journal import Marks
from harness.train.memory import MemoryWatch
from harness.train.profiles import Profiles
from harness.train.snapshots import Snapshots
from harness.train.timing import StepTimer, Times
from harness.train.workload import Workload

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
    """Keeps what is put."""

    def __init__(self) -> None:
        self.acks: list[AckRow] = []
        self.events: list[EventRow] = []
        self.settings: list[SettingsRow] = []
        self.states: list[RunState] = []

    def put(self, row: Any) -> None:
        kept: dict[type, list[Any]] = {
            AckRow: self.acks,
            EventRow: self.events,
            SettingsRow: self.settings,
        }
        kept[type(row)].append(row)

    def set_state(self, state: RunState, message: str, timeout_s: float = 0.0) -> bool:
        self.states.append(state)
        return True


class RowJournal:
    """Keeps every row, whatever its kind."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def put(self, row: Any) -> None:
        self.rows.append(row)

    def set_state(self, *_: Any, **__: Any) -> bool:
        return True

    def of(self, kind: type) -> list[Any]:
        return [row for row in self.rows if type(row) is kind]


class SteppedRun:
    """A small run, a step at a time, that takes snapshots and profiles into `captures` when asked."""

    def __init__(self, captures: Path, device: FakeDevice | None = None, **values: Any) -> None:
        device = device or a_device()
        self.workload = a_workload(device, **values)
        self.journal, self.inbox, self.marks = RowJournal(), Inbox(), Marks()
        self.dropped: list[str] = []
        """What broke and was dropped."""
        self.guard = Guard(lambda name, _error: self.dropped.append(name))
        clock, memory, run = Clock(tick_ns=1000), MemoryWatch(device), self.guard.run
        timer = StepTimer(clock, None, memory)
        self.snapshots = Snapshots(self.workload, device, self.journal, memory, captures, run, clock)
        self.profiles = Profiles(self.workload, device, self.journal, self.marks, captures, run, clock)
        rest = (self.marks, timer, memory, clock, self.snapshots, self.profiles)
        self.controller = Controller(self.workload, device, self.journal, self.inbox, *rest)
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

    def close(self) -> None:
        """Let go of what still follows the steps."""
        self.snapshots.abort(0, "")
        self.profiles.abort(0, "")
        self.workload.close()


def a_device(facts: DeviceFacts = CPU_FACTS) -> FakeDevice:
    """A device that torch reaches as the CPU."""
    return FakeDevice(facts)


def a_workload(device: Device | None = None, **values: Any) -> Workload:
    """The smallest catalogued model on handwritten digits, in training; seeded."""
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


def a_command(
    kind: str = CommandKind.SET, payload: str = "{}", command_id: str = "c1", source: str = "the test"
) -> CommandRow:
    return CommandRow(command_id, 1, kind, payload, source)


def some_times(end_ns: int = 1_000, step_ns: int = 1_000) -> Times:
    """A step's times; its phases take 1, 2, 3, 4 and 5 ns."""
    start_ns = end_ns - step_ns
    return (start_ns, *(start_ns + mark for mark in (0, 1, 3, 6, 10, 15)), end_ns)


def a_reading(allocated_bytes: int | None = 1) -> MemoryReading:
    return MemoryReading(allocated_bytes, 2, 3, 4, 5, 6, 7, 8)


def raising(error: BaseException) -> Callable[..., Any]:
    """A function that raises `error` however it is called."""

    def function(*_args: object, **_kwargs: object) -> Any:
        raise error

    return function
