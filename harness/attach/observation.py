"""The steps of a script, from the events at torch's entry points."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from harness.attach.autocast import RegionState
from harness.attach.batches import samples_of, tokens_of
from harness.attach.cycle import UpdateCycle
from harness.attach.ending import ScriptStopped
from harness.attach.recording import record_loader
from harness.attach.switches import ScriptSwitches
from harness.attach.tracker import StepTracker
from harness.attach.training import ScriptTraining
from harness.records.run import EventKind, EventRow, Severity
from harness.watch.context import RunContext
from harness.watch.live_settings import LiveSettings
from harness.watch.steps import Steps

# Evaluations that follow each other faster have one event.
_EVALUATION_EVENT_NS = 10_000_000_000


class Observation:
    """A training that has begun: its steps, their times, their boundaries. Used on the training thread.

    Attributes:
        training: the models and optimizers.
        steps: the watch's half.
    """

    def __init__(
        self,
        context: RunContext,
        steps: Steps,
        training: ScriptTraining,
        switches: ScriptSwitches,
        live: LiveSettings,
    ) -> None:
        """`live` changes the settings of `switches`."""
        self.training = training
        self.steps = steps
        self._context = context
        self._switches = switches
        self._live = live
        copies = context.device.torch_device.type != "cpu"
        self._tracker = tracker = StepTracker(steps.timer, copies=copies, evaluated_ns=self._evaluated)
        training.read_phase = lambda: tracker.oom_phase
        self._cycle = UpdateCycle()
        self._step = 1
        self._updates = 0
        self._scaled: tuple[Any, Any] = (None, None)
        self._inputs: tuple[int | None, int | None] = (None, None)
        self._evaluation_ns = -_EVALUATION_EVENT_NS
        self.has_ended = not steps.proceed(1)
        tracker.restart()

    def batch_requested(self) -> None:
        """A loader is about to return a batch."""
        if self._cycle.batch_requested():
            self._end_step()
        self._tracker.batch_requested()

    def batch_arrived(self, batch: Any) -> None:
        """A loader returned `batch`."""
        self._tracker.batch_arrived(samples_of(batch))

    def loader_ended(self) -> None:
        """A loader has no more batches, or failed."""
        self._tracker.batch_arrived(None)

    def fetch(self, iterator: Iterator[Any]) -> Any:
        """Return the next batch of `iterator`; raises StopIteration at its end."""
        return self.training.calls.fetch(iterator)

    def forward_began(self, model: nn.Module, inputs: tuple[Any, ...]) -> None:
        """A model is called."""
        is_training = model.training and torch.is_grad_enabled()
        self._switches.autocast.forward_began(is_training=is_training)
        self._tracker.forward_began(is_training=is_training)
        if is_training:
            self._inputs = samples_of(inputs), tokens_of(inputs)

    def run_forward(self, call: Callable[[], Any]) -> Any:
        """Return the output of the model's `call`, under the settings in effect."""
        return self.training.calls.call_model(lambda: self._switches.run_forward(call))

    def region_entered(self, region: torch.autocast) -> RegionState | None:
        """Return the state for an autocast region that is about to be entered; None: its own."""
        return self._switches.region_entered(region)

    def loss_scaled(self, loss: Any, scaled: Any) -> None:
        """A GradScaler scaled a loss; one that is disabled returns it as it is."""
        self._switches.has_scaler |= scaled is not loss
        self._scaled = scaled, loss

    def backward_began(self, loss: Tensor | None) -> None:
        """Gradients of `loss` are about to be computed."""
        (scaled, unscaled), self._scaled = self._scaled, (None, None)
        if loss is not None and loss.numel() == 1:
            value = unscaled if scaled is loss else loss
            self.training.loss = value.detach().reshape(())
        self._tracker.backward_began()

    def run_backward(self, loss: Tensor | None, call: Callable[[], Any]) -> None:
        """Compute the gradients of `loss` by `call`."""
        self.training.calls.compute_gradients(loss, call)

    def backward_ended(self) -> None:
        """Gradients were computed."""
        self._tracker.backward_ended()

    def update_began(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to step."""
        if not any(optimizer is one for one in self.training.optimizers):
            self.training.optimizers += (optimizer,)
        self._switches.rates.update_began(optimizer)
        self._tracker.update_began()

    def update_ended(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has stepped. Raises ScriptStopped where the run is to end."""
        self._switches.rates.update_ended(optimizer)
        self._updates += 1
        is_last = self._cycle.updated(id(optimizer))
        self._tracker.update_ended()
        if is_last:
            self._end_step()

    @property
    def updates(self) -> int:
        """The number of optimizer steps so far."""
        return self._updates

    def update_skipped(self, optimizer: torch.optim.Optimizer) -> None:
        """A GradScaler did not call the optimizer, because gradients were not finite. Raises as
        `update_ended`."""
        self._tracker.update_began()
        self.update_ended(optimizer)

    def leave(self) -> None:
        """Leave the script as it is: nothing more is called."""
        self._switches.close()

    def _end_step(self) -> None:
        steps, training, timer, step = self.steps, self.training, self.steps.timer, self._step
        loss_ticket = timer.take_loss(training.loss)
        ticket = None if timer.end_device is None else timer.end_device()
        samples, tokens = self._inputs
        if self._tracker.samples is not None:
            samples = self._tracker.samples
        training.samples_per_step, training.tokens_per_step = samples or 0, tokens
        training.calls.tidy(step)
        times_ns = self._tracker.end()
        steps.step_ended(step, times_ns, ticket, loss_ticket, training.samples_per_step, tokens)
        self._step = step + 1
        earlier = self._switches.loaders.step_ended()
        if earlier is not None and record_loader(self._context, self._switches, step + 1, earlier):
            steps.boundary.unsettle(step + 1)
        if self._switches.autocast.has_news:
            values = self._switches.found_values()
            if values:
                self._live.impose(values, step + 1, "The script has its own autocast: ")
        if not self.has_ended and not steps.proceed(step + 1):
            self.has_ended = True
            raise ScriptStopped("" if steps.outcome is None else steps.outcome.message)

    def _evaluated(self, duration_ns: int) -> None:
        now_ns = self._context.clock_ns()
        if now_ns - self._evaluation_ns < _EVALUATION_EVENT_NS:
            return
        self._evaluation_ns = now_ns
        message = f"Evaluation took {duration_ns / 1e9:.2f} s; it belongs to no step."
        kind, severity = EventKind.EVALUATION, Severity.INFO
        self._context.journal.put(
            EventRow(now_ns, self._step, kind, severity, "evaluation", message, "{}", None)
        )
