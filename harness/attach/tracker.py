"""The phases of a script's step, from the events at torch's entry points.

A step lasts from the end of the one before to its own, as in `harness.watch.timing`. Each moment of it
belongs to one phase or to none (the residual). Evaluation between two steps belongs to no step: the next one
then begins with the first batch after it. Nor does evaluation between two micro-batches of a step, which has
all that was done up to the last backward pass before it. A call of a model without gradients, or in
evaluation mode, is evaluation unless a backward pass follows before the next batch; so is a batch loaded
without gradients, and what is done after the last batch that is evaluated.

The events of every step are flat, see `harness.attach.entries`: each adds the time since the one before to
its phase by itself.
"""

from collections.abc import Callable
from itertools import accumulate
from weakref import ref

from harness.analysis.oom.report import OomPhase
from harness.attach.left_batches import LeftBatches, UnusedBatch
from harness.attach.passes import LoaderPass
from harness.attach.phase_clock import (
    BACKWARD,
    COPY,
    DATA_WAIT,
    FORWARD,
    LOSS,
    OPTIMIZER,
    OTHER,
    PHASES,
    PhaseClock,
)
from harness.records.run import Phase
from harness.watch.timing import StepTimer, Times

# Calls without a backward pass are far more than usual from so many times the most of any step on.
_FAR_MORE = 3
_OOM_PHASES = (
    OomPhase.DATA,
    OomPhase.COPY,
    OomPhase.FORWARD,
    OomPhase.BACKWARD,
    OomPhase.OPTIMIZER,
    OomPhase.BETWEEN,
    OomPhase.FORWARD,
)


class StepTracker(PhaseClock):
    """Collects the times of one step after the other; used on the training thread.

    Attributes:
        is_updating: whether an optimizer steps: forward and backward passes are then those of its closure.
        repeats_batch: whether a backward pass that begins is for the same batch as one before: in the closure
            of an optimizer, or after another optimizer's update and gradients in the same step.
        has_batch: whether a loader returned a batch since the last step ended.
        has_evaluated: whether a model was called without training it, or a batch was loaded without
            gradients, since the last backward pass.
        samples: of the batches since the last step ended, without those that the script has left (`left`);
            None: no loader returned a batch.
        evaluation_ns: the duration of the evaluation since the last step ended.
        calls: calls of models with gradients since the last backward pass.
        backward_depth: how deep backward passes are nested. Only the outermost ones count.
    """

    def __init__(
        self,
        timer: StepTimer,
        *,
        copies: bool,
        left_out: Callable[[int], object] = lambda _evaluation_ns: None,
        feeds: Callable[[LoaderPass], bool | None] = lambda _batches: None,
    ) -> None:
        """`copies` is whether batches are copied to a device between loader and forward pass; `left_out` is
        called, with `evaluation_ns`, where an evaluation has ended before anything was trained in the
        step; `feeds` returns whether a pass feeds the training; None: that is not known yet."""
        super().__init__(timer)
        self._left_out = left_out
        self._after_batch = COPY if copies else OTHER
        # How deep the calls of loaders are nested, as `backward_depth`.
        self._fetches = self.backward_depth = 0
        self.is_updating = self.repeats_batch = self._has_gradients = False
        self.has_evaluated = self._is_evaluating = self.has_batch = False
        self.samples: int | None = None
        self.left, self.evaluation_ns, self.calls = LeftBatches(feeds), 0, 0
        # Of the calls those of the step, and how many a step had at most before a backward pass.
        self._step_calls = self._most_calls = 0
        # Whether the newest call is evaluation by itself.
        self._evaluates = False
        # What `has_evaluated` and `_is_evaluating` were as the newest batch was requested.
        self._before_request = False, False
        # When the update that ends the step ended, if that is known only later.
        self._update_ns: int | None = None

    @property
    def oom_phase(self) -> OomPhase:
        """The phase under way."""
        if self._evaluates and self._phase in (FORWARD, LOSS):
            return OomPhase.EVALUATION
        return _OOM_PHASES[self._phase]

    @property
    def calls_without_backward(self) -> int:
        """`calls`, where those are far more than any step has had before a backward pass; else 0."""
        usual = self._most_calls
        return self.calls if usual and self.calls > _FAR_MORE * usual else 0

    def batch_requested(self, *, is_part: bool = False, skipped: int | None = None) -> None:
        """A loader is about to return a batch. `is_part` is whether calls in training mode without gradients
        are no evaluation. Those before it, of `skipped` samples, are not trained on; None: they may be."""
        self._fetches += 1
        if self._fetches > 1:
            return
        self._before_request = self.has_evaluated, self._is_evaluating
        if self.has_evaluated and (self._is_evaluating or not is_part):
            self.leave_out()
            self._fetches = 1
        self.is_updating = False  # It is on after an error in an optimizer.
        if self._timer.is_observing:
            now_ns = self.clock_ns()
            self._spent_ns[self._phase] += now_ns - self.last_ns
            self.last_ns = now_ns
            if self._trained is not None and self._requested is None:
                self._requested = self._spent_ns.copy(), now_ns
        self._phase = DATA_WAIT
        if skipped is not None:
            self.samples = (self.samples or 0) - skipped
            self._leave_loss(OTHER)

    def batch_arrived(self, samples: int | None, batches: LoaderPass | None = None) -> None:
        """A loader returned a batch of `samples`; None: their number is unknown. `batches` is its pass, if it
        is one of torch's loaders."""
        if self._fetches != 1 or self.is_updating:
            if not self._leave_fetch(self._after_batch):
                return
        else:
            self._fetches = 0
            if self._timer.is_observing:
                now_ns = self.clock_ns()
                self._spent_ns[self._phase] += now_ns - self.last_ns
                self.last_ns = now_ns
            self._phase = self._after_batch
            if (lap := self._timer.lap) is not None:
                lap(Phase.DATA_WAIT)
        self.has_batch = True
        if self.left.reopened:
            self.samples = (self.samples or 0) - self.left.samples_left(batches)
        if samples is not None:
            self.samples = (self.samples or 0) + samples
            if batches is not None:
                if self.left.unused:
                    self.left.leave_evaluated(batches)
                self.left.unused.append(UnusedBatch(ref(batches), samples, batches.has_fed))

    def batch_missed(self, *, has_failed: bool = False) -> None:
        """A loader has no more batches, or has failed: then the wait for it is still the phase under way."""
        if has_failed:
            self._fetches = max(0, self._fetches - 1)
        elif self._leave_fetch(OTHER):
            self.has_evaluated |= self._before_request[0]
            self._is_evaluating |= self._before_request[1]

    def forward_began(self, *, has_gradients: bool, is_evaluating: bool, is_repeated: bool = False) -> None:
        """The model is called, with gradients or not, and in evaluation mode or not. `is_repeated` is whether
        it is called again without a backward pass: then the script did something else in between."""
        if self.backward_depth:  # An activation checkpoint computes it again.
            return
        self._evaluates = is_evaluating or not has_gradients
        is_after = self.left.has_evaluated_others or (self._is_evaluating and not self.has_batch)
        if is_after and not self._evaluates:
            # Calls without gradients in training mode may as well be a part of this step.
            self.leave_out()
        left = self.left
        if (left.unused or left.reopened or left.inspected) and (
            samples := left.evaluate() if is_evaluating else left.take()
        ):
            self.add_samples(samples)
        if has_gradients:
            self.calls += 1
            self._step_calls += 1
        if self._evaluates:
            self.has_evaluated = True
            self._is_evaluating = self._is_evaluating or is_evaluating
        before = self._phase
        if before != FORWARD:
            if self._timer.is_observing:
                now_ns = self.clock_ns()
                self._spent_ns[self._phase] += now_ns - self.last_ns
                self.last_ns = now_ns
            self._phase = FORWARD
            if self._spent_ns[LOSS]:
                self._leave_loss(OTHER if is_repeated else FORWARD)
            if before != LOSS and (lap := self._timer.lap) is not None:
                lap(Phase.H2D)

    def evaluated_between(self, *, in_evaluation_mode: bool) -> None:
        """A model that is not trained itself was called between two steps, without gradients."""
        self.has_evaluated = True
        self._is_evaluating |= in_evaluation_mode

    def forward_ended(self, has_gradients: bool) -> None:
        """The model has returned from a call, with gradients or not."""
        if self.backward_depth:
            return
        if self._timer.is_observing:
            now_ns = self.clock_ns()
            self._spent_ns[self._phase] += now_ns - self.last_ns
            self.last_ns = now_ns
        self._phase = LOSS if has_gradients else OPTIMIZER if self.is_updating else OTHER

    def backward_began(self) -> None:
        """Gradients are about to be computed."""
        self.backward_depth += 1
        self._has_gradients, self.repeats_batch = True, self.repeats_batch or self.is_updating
        if self.backward_depth == 1:
            left = self.left
            if (left.unused or left.reopened or left.inspected) and (samples := left.take()):
                self.add_samples(samples)
            left.call_batches = []
            self.has_evaluated = self._is_evaluating = False
            if self._step_calls > self._most_calls:
                self._most_calls = self._step_calls
            self.calls = self._step_calls = 0
            if self._timer.is_observing:
                now_ns = self.clock_ns()
                self._spent_ns[self._phase] += now_ns - self.last_ns
                self.last_ns = now_ns
            self._phase = BACKWARD
            self._spent_ns[FORWARD] += self._spent_ns[LOSS]
            self._spent_ns[LOSS] = 0
            if (lap := self._timer.lap) is not None:
                lap(Phase.FORWARD)

    def backward_ended(self) -> None:
        """Gradients were computed."""
        self.backward_depth = max(0, self.backward_depth - 1)
        if not self.backward_depth:
            if self._timer.is_observing:
                now_ns = self.clock_ns()
                self._spent_ns[self._phase] += now_ns - self.last_ns
                self.last_ns = now_ns
                self._trained = self._spent_ns.copy(), self.samples, self.has_batch, now_ns
                self._requested = None
            self._phase = OPTIMIZER if self.is_updating else OTHER
            if (lap := self._timer.lap) is not None:
                lap(Phase.BACKWARD)

    def backward_failed(self) -> None:
        """The backward pass raised an error, and is still the phase under way."""
        self.backward_depth = max(0, self.backward_depth - 1)

    def update_began(self) -> None:
        """An optimizer steps; with a closure, it calls forward and backward itself."""
        if self._is_evaluating and not self.has_batch and self._trained is None and self._timer.is_observing:
            self.leave_out()
        self.is_updating, self.repeats_batch = True, self._has_gradients
        self.has_evaluated = self._is_evaluating = False
        if self._timer.is_observing:
            now_ns = self.clock_ns()
            self._spent_ns[self._phase] += now_ns - self.last_ns
            self.last_ns = now_ns
        self._phase = OPTIMIZER

    def update_ended(self, *, is_last: bool = False) -> None:
        """An optimizer has stepped, or a GradScaler skipped it. Where hooks of parameters have it step within
        the backward pass, the device's clock counts the update as a part of it. The mark of the step's last
        update is owed until the loss is on its way: once the device reaches it, that has arrived too."""
        self.is_updating = False
        if self._timer.is_observing:
            now_ns = self.clock_ns()
            self._spent_ns[self._phase] += now_ns - self.last_ns
            self.last_ns = now_ns
        if self.backward_depth:
            self._phase = BACKWARD
            return
        self._phase = OTHER
        if not is_last and self._timer.is_observing:
            self._trained = self._spent_ns.copy(), self.samples, self.has_batch, self.last_ns
        if (lap := self._timer.lap) is not None:
            if is_last and self._timer.end_device is not None:
                self.owes_mark = True
            else:
                lap(Phase.OPTIMIZER)

    def end(self) -> Times:
        """End the step and return its times; the next one starts."""
        timer, spent_ns, phase = self._timer, self._spent_ns, self._phase
        end_ns, started_ns = self._update_ns, timer.end_ns
        if end_ns is None:
            end_ns = self.clock_ns()
            self.has_evaluated = self._is_evaluating = False
            if timer.is_observing:
                spent_ns[phase] += end_ns - self.last_ns
        timer.end_ns = self.last_ns = end_ns
        self._spent_ns, self._phase, self._update_ns = [0] * len(PHASES), OTHER, None
        self._evaluated_from = None
        self._fetches = self.backward_depth = 0
        self.has_batch = False
        self.is_updating = self.repeats_batch = self._has_gradients = False
        self.samples = self._trained = self._requested = None
        left, self.evaluation_ns = self.left, 0
        left.call_batches = []
        if left.unused or left.reopened or left.inspected or left.has_evaluated_others:
            left.clear()
        ends_ns = accumulate(spent_ns[: OPTIMIZER + 1], initial=started_ns)
        return (started_ns, *ends_ns, end_ns)

    def end_with_update(self) -> None:
        """Let the newest update be the end of the step, which shows only now: what was evaluated since then
        is before the next one."""
        if self._trained is not None and self._timer.is_observing:
            spent_ns, self.samples, self.has_batch, self._update_ns = self._trained
            if self.last_ns != self._update_ns:
                self._timer.leave_device_out()
            self._spent_ns = spent_ns.copy()

    @property
    def has_trained(self) -> bool:
        """Return whether a backward pass of the step under way, an observed one, has ended."""
        return self._trained is not None

    @property
    def is_in_backward(self) -> bool:
        """Return whether a backward pass is under way."""
        return self.backward_depth > 0

    @property
    def is_at_start(self) -> bool:
        """Return whether nothing of the step has happened."""
        return self._phase == OTHER and not (self._fetches or self.has_batch or self.has_evaluated)

    def restart(self) -> None:
        """Begin the step anew: what happened since the last one ended belongs to none."""
        self._timer.restart()
        self.last_ns, self._trained = self._timer.end_ns, None
        self._clear()
        self.left.clear()

    def forget_gradients(self) -> None:
        """Take the backward passes of the step so far for a part of the evaluation."""
        self._trained = None

    def add_samples(self, samples: int) -> None:
        """Add the samples of batches that are trained on after an evaluation, or take some out."""
        self.samples = (self.samples or 0) + samples or None
        self.has_batch |= samples > 0

    def leave_out_dropped(self) -> None:
        """Begin the step with the first batch that was requested since the newest backward pass."""
        if self._requested is None:  # The step is not observed.
            return
        spent_ns, requested_ns = self._requested
        self._timer.leave_device_out()
        self.evaluation_ns += requested_ns - self._timer.end_ns
        self._timer.end_ns = requested_ns
        self._spent_ns = [now_ns - then_ns for now_ns, then_ns in zip(self._spent_ns, spent_ns, strict=True)]
        self._left_out(self.evaluation_ns)

    def leave_out(self) -> None:
        """Begin the step anew after an evaluation, or go on with what it had trained before."""
        trained, timer, self._step_calls = self._trained, self._timer, 0
        self._clear()
        if trained is None or not timer.is_observing:
            self.evaluation_ns += timer.leave_out()
            self.last_ns, self._trained = timer.end_ns, None
            self._left_out(self.evaluation_ns)
            return
        spent_ns, self.samples, self.has_batch, began_ns = trained
        duration_ns = timer.leave_out_since(began_ns)
        self.evaluation_ns += duration_ns
        self.last_ns = began_ns + duration_ns
        self._spent_ns = spent_ns.copy()
        self._trained = spent_ns, self.samples, self.has_batch, self.last_ns

    def leave_out_after_batch(self) -> None:
        """Leave out the evaluation since the batch of the step, which is trained on now."""
        if duration_ns := self.leave_out_evaluation():
            self.has_evaluated = self._is_evaluating = False
            self.evaluation_ns += duration_ns
            self._left_out(self.evaluation_ns)

    def _leave_fetch(self, phase: int) -> bool:
        """Leave the wait for a batch; return whether it was the outermost one."""
        self._fetches = max(0, self._fetches - 1)
        if self._fetches:
            return False
        if self._timer.is_observing:
            now_ns = self.clock_ns()
            self._spent_ns[self._phase] += now_ns - self.last_ns
            self.last_ns = now_ns
        self._phase = OPTIMIZER if self.is_updating else phase
        if (lap := self._timer.lap) is not None:
            lap(Phase.DATA_WAIT)
        return True

    def _clear(self) -> None:
        self._spent_ns, self._phase, self._evaluated_from = [0] * len(PHASES), OTHER, None
        self._fetches = self.backward_depth = 0
        self.has_evaluated = self._is_evaluating = self.has_batch = self.is_updating = self.owes_mark = False
        self.samples = self._requested = None
        self.left.leave_out()
