"""A training loop that is not ours, and a watch over it: a model, an optimizer, a device, step boundaries."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from harness.analysis.oom.report import OomPhase
from harness.device.cpu.device import CpuDevice
from harness.device.protocol import Device
from harness.records.run import AmpMode
from harness.store.folder import RunFolder
from harness.store.folder_handle import FolderHandle
from harness.store.liveness import Liveness
from harness.watch.boundary import StepAction
from harness.watch.inbox import Inbox
from harness.watch.steps import Steps
from harness.watch.timing import Times
from harness.watch.training import Replaced, Wrapper
from harness.watch.watch import RunFiles, Watch
from tests.store_factories import a_run

SAMPLES = 16
FEATURES = 8


@dataclass(frozen=True)
class PlainSettings:
    """Settings that a watch reads, for a loop without its own."""

    max_steps: int | None = None
    max_seconds: float | None = None
    stall_after_s: float = 60.0
    memory_cap_bytes: int | None = None
    batch_size: int = SAMPLES
    grad_accumulation: int = 1
    amp: AmpMode = AmpMode.OFF
    activation_checkpointing: bool = False
    compile: bool = False
    memory_history: bool = False
    hunt_leaks: bool = False
    profile_at: str | None = None
    measure_overhead: bool = True

    def model_dump(self, *, mode: str = "python") -> dict[str, Any]:
        del mode
        return dict(vars(self))


class NeverCalled:
    """Stands in for a call that the loop does not make."""

    is_on = True

    def remove(self) -> None:
        pass


class PlainTraining:
    """Any model and optimizer. Of what a step calls, the forward pass and the update can be wrapped."""

    computes_between_calls = has_compiled = is_first_update = False
    calls_without_backward = last_event_ns = 0
    data: object = None
    oom_phase = OomPhase.BETWEEN

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, **settings: Any) -> None:
        self.model = model
        self.optimizer = optimizer
        self.settings = PlainSettings(**settings)
        self.loss = torch.zeros(())

    def wrap(self, call: str, wrapper: Wrapper) -> Replaced | NeverCalled:
        owner: dict[str, tuple[object, str]] = {
            "forward": (self.model, "forward"),
            "update": (self.optimizer, "step"),
        }
        return Replaced(*owner[call], wrapper) if call in owner else NeverCalled()

    def worker_pids(self) -> list[int]:
        return []


def a_plain_training(**settings: Any) -> PlainTraining:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 1))
    return PlainTraining(model, torch.optim.SGD(model.parameters(), lr=0.05), **settings)


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    """Always the same, from the first."""
    generator = torch.Generator().manual_seed(1)
    while True:
        inputs = torch.randn(SAMPLES, FEATURES, generator=generator)
        yield inputs, inputs.sum(dim=1, keepdim=True)


def a_plain_step(training: PlainTraining, batch: tuple[Tensor, Tensor]) -> float:
    loss = nn.functional.mse_loss(training.model(batch[0]), batch[1])
    loss.backward()
    training.optimizer.step()
    training.optimizer.zero_grad()
    return float(loss.detach())


def train_watched(
    training: PlainTraining, steps: Steps, before: Callable[[int], None] = lambda _step: None
) -> None:
    """A plain loop with its step boundaries; `before` is called before each step."""
    timer, number, loader = steps.timer, 0, batches()
    while True:
        before(number + 1)
        if not steps.proceed(number + 1):
            return
        number += 1
        times_ns: Times = (timer.end_ns, timer.now())
        inputs, targets = next(loader)
        arrived_ns = timer.now()
        loss = nn.functional.mse_loss(training.model(inputs), targets)
        forward_ns = timer.now()
        loss.backward()
        backward_ns = timer.now()
        training.optimizer.step()
        training.optimizer.zero_grad()
        training.loss = loss.detach()
        taken, updated_ns = timer.take_loss(training.loss), timer.now()
        timer.end_ns = timer.clock_ns()
        times_ns += (arrived_ns, arrived_ns, forward_ns, backward_ns, updated_ns, timer.end_ns)
        steps.step_ended(number, times_ns, None, taken, SAMPLES, None)


@contextmanager
def a_watch(
    folder: Path, training: PlainTraining, inbox: Inbox | None = None, device: Device | None = None
) -> Iterator[Watch]:
    """A watch over real files in `folder`, by default on the CPU."""
    run = RunFolder(folder)
    with FolderHandle(run) as handle, Liveness.hold(run.alive) as alive:
        files = RunFiles(folder, handle, alive)
        device = device or CpuDevice.open()
        device.begin_memory()
        with Watch(files, device, a_run(), training.settings, inbox) as watch:
            yield watch


def trained(
    folder: Path,
    training: PlainTraining,
    before: Callable[[int, Inbox], None] = lambda _step, _inbox: None,
    actions: Sequence[StepAction] = (),
) -> Watch:
    """Train to the end under a watch; raises what the loop raises."""
    inbox = Inbox()
    with a_watch(folder, training, inbox) as watch, watch.observe(training, actions) as steps:
        train_watched(training, steps, lambda step: before(step, inbox))
    return watch
