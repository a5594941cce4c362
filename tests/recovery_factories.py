"""A training loop with a recovery, which runs out of memory where a test says so."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.device.fakes import FakeDevice
from harness.memory_records import OomReportRow
from harness.records import EventKind
from harness.store.folder import RunFolder
from harness.train.control import Controller
from harness.train.inbox import Inbox
from harness.train.journal import Marks
from harness.train.loop import train
from harness.train.memory import MemoryWatch
from harness.train.oom_reporter import OomReporter
from harness.train.readback import LossReader
from harness.train.recovery import Recovery
from harness.train.timing import StepTimer
from tests.train_factories import Clock, FakeJournal, a_command, a_device, a_workload

TEXT = "CUDA out of memory. Tried to allocate 2.00 GiB."
LIMIT = 60
"""So many steps a run takes."""


class Journal(FakeJournal):
    def __init__(self) -> None:
        super().__init__()
        self.reports: list[OomReportRow] = []
        self.durable: list[Any] = []

    def put(self, row: Any) -> None:
        if isinstance(row, OomReportRow):
            self.reports.append(row)
        else:
            super().put(row)

    def put_durable(self, row: Any) -> bool:
        self.durable.append(row)
        self.put(row)
        return True

    def flush(self, timeout_s: float) -> bool:
        return True


class Listener:
    def __init__(self) -> None:
        self.steps: list[int] = []
        self.flags: list[int] = []

    def step_ended(self, step: int, *_: Any) -> None:
        self.steps.append(step)


class Bench:
    """A loop with a recovery; `acts` are called right before the step whose number they stand under, `asked`
    before commands are carried out."""

    def __init__(self, tmp_path: Path, device: FakeDevice | None = None, **values: Any) -> None:
        self.device = device or a_device()
        self.workload = a_workload(self.device, max_steps=LIMIT, **values)
        self.journal, self.inbox, self.marks = Journal(), Inbox(), Marks()
        clock = Clock(tick_ns=1)
        self.memory = memory = MemoryWatch(self.device)
        timer = StepTimer(clock)
        self.controller = Controller(
            self.workload, self.device, self.journal, self.inbox, self.marks, timer, memory, clock
        )
        reporter = OomReporter(self.journal, self.device, RunFolder(tmp_path), self.workload.settings, clock)
        reporter.workload = self.workload
        reporter.level_bytes = lambda: memory.level_bytes
        self.recovery = Recovery(
            self.workload, self.device, self.controller, timer, memory, reporter, self.journal, clock
        )
        self.timer, self.listener = timer, Listener()
        self.asked: dict[int, list[Callable[[], Any]]] = {}
        self.acts: dict[int, list[Callable[[], Any]]] = {}

    def proceed(self, step: int) -> bool:
        for ask in self.asked.pop(step, ()):
            ask()
        if not self.controller.proceed(step):
            return False
        for act in self.acts.pop(step, ()):
            act()
        self.listener.flags.append(self.marks.flags)
        return True

    def train(self) -> int:
        return train(self.workload, self, self.timer, LossReader(None), self.listener, self.recovery)

    def ask(self, step: int, command_id: str = "c1", **values: Any) -> None:
        """Have settings changed before `step`."""
        command = a_command(payload=json.dumps(values), command_id=command_id)
        self.asked.setdefault(step, []).append(lambda: self.inbox.put(command))

    def fail_above(self, batch_size: int) -> None:
        """Let batches larger than this run out of memory."""
        inner = self.workload.model.forward

        def forward(inputs: Tensor, targets: Tensor) -> Any:
            loss = inner(inputs, targets)
            if len(inputs) > batch_size:
                raise torch.OutOfMemoryError(TEXT)
            return loss

        self.workload.model.forward = forward

    def events(self, kind: EventKind) -> list[Any]:
        return [event for event in self.journal.events if event.kind == kind]


def in_a_step(bench: Bench, step: int, failing: Callable[[], Any]) -> None:
    """Let `failing` stand in for the workload's forward pass of one step."""

    def arm() -> None:
        forward = bench.workload.forward

        def fail(*_: Any) -> Any:
            bench.workload.forward = forward
            return failing()

        bench.workload.forward = fail

    bench.acts.setdefault(step, []).append(arm)
