"""A training loop with a recovery, which runs out of memory where a test says so."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.device.testing.device import FakeDevice
from harness.records.measurement import MeasureRequest
from harness.records.memory import OomReportRow
from harness.records.run import CommandKind, EventKind
from harness.settings.spec import SPECS
from harness.store.folder import RunFolder
from harness.train.loop import train
from harness.train.recovery import Recovery
from harness.watch.oom.reporter import OomReporter
from tests.train_factories import Clock, LoopSteps, Watched, a_command

TEXT = "CUDA out of memory. Tried to allocate 2.00 GiB."
LIMIT = 60
"""So many steps a run takes."""


class Bench(Watched):
    """A loop with a recovery; `acts` are called right before the step whose number they stand under, `asked`
    before commands are carried out."""

    def __init__(self, tmp_path: Path, device: FakeDevice | None = None, **values: Any) -> None:
        super().__init__(device, now_ns=Clock(tick_ns=1), max_steps=LIMIT, **values)
        reporter = OomReporter(
            self.context, self.memory, RunFolder(tmp_path), self.workload.settings, frozenset(SPECS)
        )
        self.recovery = Recovery(self.workload, self.live, self.steps, reporter)
        self.taken: list[int] = []
        self.flags: list[int] = []
        self.asked: dict[int, list[Callable[[], Any]]] = {}
        self.acts: dict[int, list[Callable[[], Any]]] = {}

    def proceed(self, step: int) -> bool:
        for request in self.asked.pop(step, ()):
            request()
        if not self.controller.proceed(step):
            return False
        for act in self.acts.pop(step, ()):
            act()
        self.flags.append(self.marks.flags)
        return True

    def train(self) -> int:
        steps = LoopSteps(self.proceed, self.step_ended, self.timer)
        return train(self.workload, steps, self.recovery)

    def step_ended(self, step: int, *_: Any) -> None:
        self.taken.append(step)

    def request(self, step: int, command_id: str = "c1", **values: Any) -> None:
        """Have settings changed before `step`."""
        command = a_command(payload=json.dumps(values), command_id=command_id)
        self.asked.setdefault(step, []).append(lambda: self.inbox.put(command))

    def measure(self, step: int, **values: Any) -> None:
        """Have a change measured from `step` on."""
        payload = json.dumps(MeasureRequest(values)._asdict())
        self.asked.setdefault(step, []).append(
            lambda: self.inbox.put(a_command(CommandKind.MEASURE, payload))
        )

    def fail_above(self, batch_size: int) -> None:
        """Let batches larger than this run out of memory."""
        inner = self.workload.model.forward

        def forward(inputs: Tensor, targets: Tensor) -> Any:
            loss = inner(inputs, targets)
            if len(inputs) > batch_size:
                raise torch.OutOfMemoryError(TEXT)
            return loss

        self.workload.model.forward = forward

    @property
    def reports(self) -> list[OomReportRow]:
        return self.journal.of(OomReportRow)

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
