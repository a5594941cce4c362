"""The parts of a script's training, and the ends of its steps."""

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ReferenceType

from torch import Tensor, nn

from harness.attach.cycle import UpdateCycle
from harness.attach.dropped_gradients import DroppedGradients
from harness.attach.ending import ScriptStopped, caught_stop
from harness.attach.evaluations import Evaluations
from harness.attach.manual import ManualUpdates
from harness.attach.missed_models import MissedModels
from harness.attach.numbering import StepUnderWay
from harness.attach.recording import ScriptRecords
from harness.attach.step_sizes import StepSizes
from harness.attach.switches import ScriptSwitches
from harness.attach.tracker import StepTracker
from harness.attach.training import ScriptTraining
from harness.attach.untrained_calls import UntrainedCalls
from harness.watch.context import RunContext
from harness.watch.inbox import Inbox
from harness.watch.live_settings import LiveSettings
from harness.watch.readback import LossTicket
from harness.watch.steps import Steps


class StepEnds:
    """Hands over each step as it ends, and goes on with the next one. Used on the training thread.

    Attributes:
        training, steps: the models and optimizers, and the watch's half.
        updates: the number of optimizer steps so far.
        under_way, step: the step under way, and its number.
        raises_stop: whether the end of the run is raised in the script, as ScriptStopped.
        tracker: the phases of the step under way.
        calls, loaders, autocast, rates: of the script, for its entry points; `rates` has their factor.
        feeding: finds the loaders that feed the training.
        cycle, manual: decide where a step ends; manual is None where optimizers decide.
        is_discovering: whether models are to be searched for after the next update, or before.
        missed: the models that are followed, but not called.
        records: writes down what becomes known of the script.
        model_id: the id of the first model of the newest step, if it was not a plain one.
        has_ended: whether the run is to end.
        is_loading: whether the script itself reports a batch; loaders within say nothing then.
        sizes: the samples and the tokens of the step under way.
    """

    def __init__(
        self,
        context: RunContext,
        inbox: Inbox,
        steps: Steps,
        training: ScriptTraining,
        switches: ScriptSwitches,
        live: LiveSettings,
        find_models: Callable[[], None],
        *,
        under_way: StepUnderWay,
        clears_gradients: bool = False,
    ) -> None:
        """`live` changes the settings of `switches`; `find_models` searches for models and ends
        `is_discovering`; `clears_gradients` is whether the script has called `zero_grad` of a model."""
        self.training, self.steps = training, steps
        self._context, self._inbox, self._switches = context, inbox, switches
        self.calls, self.loaders, self.autocast = training.calls, switches.loaders, switches.autocast
        self.rates, self.feeding = switches.rates, switches.loaders.feeding
        self.is_discovering, self.missed, self._find_models = True, MissedModels(), find_models
        self.records = ScriptRecords(context, switches, live, steps.boundary.unsettle)
        self.rates.warn = partial(context.warn, "learning-rate factor")
        self._copies = copies = context.device.torch_device.type != "cpu"
        self._evaluations = Evaluations(context, steps.memory)
        left_out, feeds = self._evaluations.left_out, self.feeding.feeds
        self.tracker = tracker = StepTracker(steps.timer, copies=copies, left_out=left_out, feeds=feeds)
        training.read_phase = lambda: tracker.oom_phase
        self.cycle = UpdateCycle(partial(training.partners, self.feeding))
        training.optimizer_ended, self.loaders.loader_opened = self.cycle.forget, tracker.left.loader_opened
        self.manual = ManualUpdates(clears_gradients) if not training.optimizers else None
        self.under_way, self.step = under_way, 1
        self.updates = 0
        self.raises_stop, self._has_raised_stop = True, False
        self.is_loading = self._has_loss = False
        self.sizes = StepSizes(self.feeding, tracker.left)
        self._dropped = DroppedGradients(training, self.sizes, tracker, self.feeding)
        self._scaled: tuple[Any, Any] = (None, None)
        self._small_loss: Tensor | None = None
        self.model_id: int | None = None
        # Of a script without an optimizer: the newest model that was called for training and is not followed,
        # and its samples and tokens.
        self._further_model: tuple[ReferenceType[nn.Module], tuple[int | None, int | None]] | None = None
        # Whether the update that is still within another call ends the step; None without one.
        self._early_update: bool | None = None
        self.has_ended, self.autocast.has_place = not steps.proceed(1), False
        tracker.restart()
        self._untrained_calls = UntrainedCalls(under_way, tracker)

    def leave_plain_step(self) -> None:
        """Expect no plain step any more."""

    def _expect_plain_step(self) -> None:
        """Decide whether the next step is expected to be a plain one."""

    def finish(self) -> None:
        """The script has ended: write down what it did after its last step."""
        self.leave_plain_step()
        self.missed.close()
        passes = self.feeding.recent  # Kept alive here, as the script may have dropped their loader.
        if self.cycle.is_undecided or (self.manual is not None and self.manual.has_gradients):
            if self.tracker.has_evaluated and self.tracker.has_trained:
                self.tracker.leave_out()
            self.tracker.end_with_last_event()
            self._record_step()
        elif self.cycle.has_stepped_alone:  # The next batch would have ended it.
            self.tracker.end_with_update()
            self._record_step()
        elif not self.under_way.has_trained:
            self.tracker.has_evaluated |= self.tracker.has_batch and not (passes or self.feeding.is_dry)
        elif self.manual is None and self.sizes.leader is None and self.model_id is not None:
            # Gradients of models in evaluation mode alone, unlike those of the training.
            self.tracker.forget_gradients()
            self.tracker.has_evaluated = True
        elif passes and not self.tracker.has_evaluated:
            self._record_news(self.step - 1)  # It may be the first step with another loader.
        if self.tracker.has_evaluated:
            self.tracker.leave_out()
        self._evaluations.add(self.tracker.evaluation_ns, self.step)
        self._evaluations.record()

    def _end_step(self) -> None:
        """End the step. Raises ScriptStopped where the run is to end."""
        step, feeding, recent = self._record_step(), self.feeding, self.feeding.recent
        is_plain = feeding.is_settled and len(recent) == 1 and recent[0] is feeding.newest()
        if is_plain and not self.autocast.has_news:
            feeding.end_same_step()
        else:
            self._record_news(step)
        if self.has_ended:
            if not self.raises_stop:  # The loop over the steps ends itself, after this iteration.
                return
            if self._has_raised_stop:
                self._resume(step)
        self._proceed(step)

    def _proceed(self, step: int) -> None:
        """Go on after `step`. Raises ScriptStopped where the run is to end, unless its loop ends itself."""
        if not self.steps.proceed(step + 1):
            self._inbox.check_folder()
            self.has_ended = True
            if not self.raises_stop:
                return
            outcome, self._has_raised_stop = self.steps.outcome, True
            raise ScriptStopped("" if outcome is None else outcome.message)
        if self.tracker.last_ns != self.steps.timer.end_ns:  # A pause, or work of the watch, is of no step.
            self.tracker.begin()
        self._expect_plain_step()

    def _record_step(self) -> int:
        """Hand over the step that ends, and return its number."""
        training, tracker, timer, step = self.training, self.tracker, self.steps.timer, self.step
        under_way = self.under_way
        loss_ticket: LossTicket | None = None
        if isinstance(logged := under_way.logged_loss, float):
            loss_ticket = logged
        elif logged is not None or self._has_loss:
            loss_ticket = timer.take_loss(training.loss if logged is None else logged)
        self._has_loss, under_way.logged_loss = False, None
        loss = training.loss
        if type(loss) is Tensor and loss.untyped_storage().nbytes() > loss.element_size():
            # As of `mse_loss`: it is in the memory for the losses of all elements, which the script may have
            # dropped. One scalar replaces all such losses: a request for another one in each step may fail,
            # or empty the allocator's cache, where a GPU is full.
            if self._small_loss is None or self._small_loss.device != loss.device:
                self._small_loss = loss.new_empty(())
            training.loss = self._small_loss
        is_late = loss_ticket is not None and not tracker.owes_mark
        if tracker.owes_mark:
            tracker.mark_update()
        ticket = None if timer.end_device is None else timer.end_device(is_late=is_late)
        self.model_id = self.sizes.leader
        samples, tokens = self.sizes.take(tracker.samples, step, prefers_inputs=self.manual is not None)
        is_missed = self.model_id is None and under_way.has_trained and bool(training.optimizers)
        if is_missed and not self.is_discovering:
            # No followed model was called although gradients were computed: they may have to be searched for.
            self.is_discovering = self.missed.step_missed(training.models, is_compiled=training.has_compiled)
        training.samples_per_step, training.tokens_per_step = samples, tokens
        if training.settings.empty_cache_every or self.calls.tidy is not self._switches.own_tidy:
            self.calls.tidy(step)
        evaluation_ns = tracker.evaluation_ns
        self.steps.step_ended(step, tracker.end(), ticket, loss_ticket, samples, tokens)
        if evaluation_ns or self._evaluations.waiting_ns:
            self._evaluations.add(evaluation_ns, step)
        if self.manual is not None:
            self.manual.has_gradients = False
        self.step, under_way.ended = step + 1, step
        under_way.has_begun = under_way.has_trained = False
        return step

    def _record_news(self, step: int) -> None:
        """Write down what became known of the script's loader and autocast after `step`."""
        self.autocast.step_ended()
        earlier = self.loaders.step_ended(step, ends_late=self.manual is not None)
        self.records.step_ended(step, earlier)

    def _resume(self, step: int) -> None:
        """Go on after a stop that the script caught: a Ctrl-C would raise once, too."""
        self.has_ended = self._has_raised_stop = False
        self._inbox.stop_was_caught()
        self.steps.boundary.outcome, self.steps.boundary.due = None, 0
        self._context.warn("stop was caught", caught_stop(step))
