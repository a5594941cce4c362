"""The steps of a script, with those that are plain (`harness.attach.plain_step`) taken at their end.

Most of them are quiet: then their row is all there is to do, and `harness.attach.entries` does it.
"""

from typing import Any

import torch
from torch import nn

from harness.attach.numbering import (
    ARRIVED,
    CALLED,
    GRADIENTS_BEGAN,
    GRADIENTS_ENDED,
    RETURNED,
    UPDATE_BEGAN,
)
from harness.attach.observation import Observation
from harness.attach.passes import LoaderPass
from harness.attach.plain_step import PlainStep


class PlainObservation(Observation):
    """An observation whose plain steps are expected, and taken at their end.

    Attributes:
        plain: the step under way, which takes the events of a plain step.
    """

    def __init__(self, plain: PlainStep, *arguments: Any, **options: Any) -> None:
        """Further arguments as for `Observation`."""
        self.plain = plain
        super().__init__(*arguments, under_way=plain, **options)
        tracker, steps = self.tracker, self.steps
        self.training.has_updated = self.cycle.has_updated
        self.training.read_phase = lambda: plain.oom_phase if plain.times_ns else tracker.oom_phase
        self.training.read_calls = lambda: tracker.calls_without_backward
        self._untrained_ns = 0
        self.training.read_last_event = lambda: max(tracker.last_ns, self._untrained_ns)
        self._timer = steps.timer
        self._deadline_ns = 0
        plain.serve(steps)
        self._inbox.on_entry = plain.interrupt

    @property
    def is_in_backward(self) -> bool:
        """Return whether a backward pass is under way, in whatever step."""
        return self.tracker.is_in_backward or len(self.plain.times_ns) == GRADIENTS_BEGAN

    def warn(self, label: str, text: str) -> None:
        """Record a warning at the step under way."""
        self._context.warn(label, text)

    def other_model_called(self, model: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Like that of `Observation`. A script that samples for a minute is not stalled."""
        self._untrained_ns = self._timer.clock_ns()
        super().other_model_called(model, inputs)

    def plain_step_ended(self) -> None:
        """All events of a plain step have happened, which is not a quiet one. Raises ScriptStopped where the
        run is to end."""
        self._take_quiet_steps()
        timer, plain, steps, step = self._timer, self.plain, self.steps, self.step
        end_ns = timer.clock_ns()
        times_ns = plain.end(timer.end_ns, end_ns)
        timer.end_ns = self.tracker.last_ns = end_ns
        self.step, plain.ended = step + 1, step
        self.updates += 1
        loss = plain.loss
        if (logged := plain.logged_loss) is not None:
            loss, plain.logged_loss = float(logged), None
        samples, tokens = self._note_sizes()
        steps.step_ended(step, times_ns, None, loss, samples, tokens)
        plain.leave(step)
        plain.succeeded()
        self._proceed(step)

    def measure(self, step: int, end_ns: int) -> bool:
        """Measure what is due after `step`, a plain one that ends at `end_ns`; return whether it is a quiet
        one apart from that."""
        plain = self.plain
        if not plain.is_recorded or end_ns >= self._deadline_ns:
            return False
        self._take_quiet_steps()
        self._note_sizes()
        step_ns = end_ns - plain.end_ns
        self.steps.recorder.measure(step, end_ns, step_ns)
        plain.succeeded()
        self._expect_quiet_steps(step_ns)
        return True

    def _note_sizes(self) -> tuple[int, int | None]:
        """Note the samples and the tokens of the plain step that ends, and return them."""
        samples, tokens = self.plain.sizes
        self.sizes.carried = self.plain.samples or 0
        samples = self.plain.samples or samples or 0
        self.training.samples_per_step, self.training.tokens_per_step = samples, tokens
        return samples, tokens

    def _take_quiet_steps(self) -> None:
        """Take over what the quiet steps have left behind."""
        count = self.plain.ended + 1 - self.step
        if count > 0:
            self.step += count
            self.updates += count
            self.tracker.calls = 0
            self._timer.end_ns = self.tracker.last_ns = self.plain.end_ns

    def leave_plain_step(self) -> None:
        """Take the events so far of a step that is not plain in the general way, and expect no plain step any
        more."""
        plain, tracker = self.plain, self.tracker
        if not plain.is_plain:
            return
        self._take_quiet_steps()
        batches, model_id = plain.batches, plain.model_id
        times_ns = plain.leave(self.step)
        if len(times_ns) < ARRIVED and plain.samples is not None:
            self.sizes.carried = plain.samples
        taken_ns = times_ns[ARRIVED:] if batches is None else times_ns
        clock_ns, tracker.clock_ns = tracker.clock_ns, iter(taken_ns).__next__
        try:
            self._replay(len(times_ns), batches, model_id)
        finally:
            tracker.clock_ns = clock_ns

    def _replay(self, events: int, batches: LoaderPass | None, model_id: int) -> None:
        """Take so many events of a plain step, whose times the clock of the tracker returns."""
        plain, tracker = self.plain, self.tracker
        if events > 0 and batches is not None:
            self.cycle.has_batch = True
            tracker.batch_requested()
        if events >= ARRIVED and batches is not None:
            self.feeding.delivered(batches)
            self.batch_arrived(plain.samples, batches)
        if events >= CALLED:
            tracker.forward_began(has_gradients=True, is_evaluating=False)
            plain.has_begun = plain.has_trained = True
            self.sizes.replay(model_id, plain.sizes)
        if events >= RETURNED:
            tracker.forward_ended(has_gradients=True)
        if events >= GRADIENTS_BEGAN:
            if plain.loss is not None:
                self.training.loss = torch.tensor(plain.loss, dtype=torch.float64, device="cpu")
                self._has_loss = True
            self._gradients_begin()
        if events >= GRADIENTS_ENDED:
            tracker.backward_ended()
        if events >= UPDATE_BEGAN:
            tracker.update_began()

    def _expect_plain_step(self) -> None:
        plain = self.plain
        if self._timer.end_device is not None or self.model_id is None or not plain.may_begin(self.step):
            return
        feeding, key = self.feeding, self.cycle.only
        batches = feeding.newest()
        if feeding.has_fed if batches is None else not batches.is_tried:
            return
        if key is None or not (self._is_plain() and key in self.training.references):
            return
        plain.expect(batches, self.model_id, key, self._timer)
        plain.until_step, self._deadline_ns = self.steps.controller.quiet_until()
        self._expect_quiet_steps(self.steps.context.progress.last_step_ns)
        if self._inbox.commands or self._inbox.stop_message is not None:
            plain.interrupt()  # Its entry may have come before `until_step` was set.

    def _expect_quiet_steps(self, step_ns: int) -> None:
        """Expect quiet steps from now on, after one of `step_ns`."""
        plain, training, recorder = self.plain, self.training, self.steps.recorder
        is_sampled = self._timer.lap is not None
        # Those of sampled steps are read should the inputs have become others. Without a plain step before,
        # this may be the first of several micro-batches.
        has_same_sizes = bool(training.samples_per_step) and training.tokens_per_step is None
        reads_sizes = is_sampled or not has_same_sizes or plain.batches is None or not plain.is_likely
        plain.expect_quiet(self._timer, reads_sizes=reads_sizes)
        plain.columns, plain.rank_waits = recorder.columns, recorder.rank_waits
        plain.until_ns = self._deadline_ns
        if plain.is_recorded:
            plain.until_ns = min(plain.until_ns, recorder.measures_from_ns(step_ns))
        if not self.steps.records_alone or recorder.is_behind:
            plain.until_step = 0

    def _is_plain(self) -> bool:
        """Return whether the next step may be a plain one, as far as the settings and the script's state
        say."""
        cycle, calls = self.cycle, self.calls
        if self.manual is not None or self.is_discovering or self.is_loading or self.has_ended:
            return False
        if cycle.only is None or cycle.has_batch or not self.tracker.is_at_start:
            return False
        return (
            self._scaled == (None, None)
            and not (self.sizes.has_slices or self.sizes.joins_batches)
            and self.feeding.is_quiet
            and self.rates.is_own
            and calls.is_own
            and calls.tidy is self._switches.own_tidy
            and not self.training.settings.empty_cache_every
            and self.autocast.is_plain
        )
