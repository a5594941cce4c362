"""The steps of a script, with those that are plain (`harness.attach.plain_step`) taken at their end.

A plain step is quiet if, at its end, no action between two steps is due, nothing is requested, and no memory
is read. Then its row is all there is to do.
"""

from typing import Any

import torch

from harness.attach.observation import Observation
from harness.attach.passes import LoaderPass
from harness.attach.plain_step import (
    ARRIVED,
    CALLED,
    GRADIENTS_BEGAN,
    GRADIENTS_ENDED,
    RETURNED,
    UPDATE_BEGAN,
    PlainStep,
)


class PlainObservation(Observation):
    """An observation whose plain steps are expected, and taken at their end.

    Attributes:
        plain: takes the events of a plain step.
    """

    def __init__(self, plain: PlainStep, *arguments: Any, **options: Any) -> None:
        """Further arguments as for `Observation`."""
        self.plain = plain
        super().__init__(*arguments, **options)
        self.under_way.plain_ns = plain.times_ns
        tracker, steps = self.tracker, self.steps
        self.training.read_phase = lambda: plain.oom_phase if plain.times_ns else tracker.oom_phase
        self._timer = steps.timer
        self._clock_ns = steps.timer.clock_ns
        self._progress = steps.context.progress
        self._pending = steps.recorder.pending
        self._step_finished = steps.controller.step_finished
        # The end of quiet steps, and the columns of their rows.
        self._quiet_until_step = self._quiet_until_ns = 0
        self._columns = steps.recorder.columns

    def plain_step_ended(self) -> None:
        """All events of a plain step have happened. Raises ScriptStopped where the run is to end."""
        end_ns, plain, step, inbox = self._clock_ns(), self.plain, self.step, self._inbox
        is_quiet = end_ns < self._quiet_until_ns and step < self._quiet_until_step
        if not is_quiet or inbox.commands or inbox.stop_message is not None:
            return self._end_plain_step(end_ns)
        timer, progress, training = self._timer, self._progress, self.training
        begin_ns, timer.end_ns = timer.end_ns, end_ns
        self.tracker.last_ns = end_ns
        self.step = step + 1
        self.under_way.ended = step
        self.updates += 1
        if not plain.is_recorded:
            plain.times_ns.clear()
            if progress.unobserved_ns is not None:
                progress.unobserved_ns.append(end_ns)
            return self._step_finished(step)
        times_ns = plain.end(begin_ns, end_ns)
        loss = plain.loss
        if (logged := self.logged_loss) is not None:
            loss, self.logged_loss = float(logged), None
        samples, tokens = plain.sizes
        training.samples_per_step = samples = plain.samples or samples or 0
        training.tokens_per_step = tokens
        progress.last_step, progress.times_ns = step, times_ns
        ticket = None if loss is None else loss.__float__
        self._pending.append((step, times_ns, None, ticket, samples, tokens, *self._columns))
        return self._step_finished(step)

    def _end_plain_step(self, end_ns: int) -> None:
        """End a plain step that may not be a quiet one."""
        timer, tracker, plain, steps, step = self._timer, self.tracker, self.plain, self.steps, self.step
        times_ns = plain.end(timer.end_ns, end_ns)
        timer.end_ns = tracker.last_ns = end_ns
        self.step, self.under_way.ended = step + 1, step
        self.updates += 1
        loss = plain.loss
        if (logged := self.logged_loss) is not None:
            loss, self.logged_loss = float(logged), None
        samples, tokens = plain.sizes
        samples = plain.samples or samples or 0
        self.training.samples_per_step, self.training.tokens_per_step = samples, tokens
        ticket = None if loss is None else loss.__float__
        steps.step_ended(step, times_ns, None, ticket, samples, tokens)
        plain.leave(step)
        plain.succeeded()
        self._proceed(step)

    def leave_plain_step(self) -> None:
        """Take the events so far of a step that is not plain in the general way, and expect no plain step any
        more."""
        plain, tracker = self.plain, self.tracker
        if (batches := plain.batches) is None:
            return
        model_id = plain.model_id
        times_ns = plain.leave(self.step)
        clock_ns, tracker.clock_ns = tracker.clock_ns, iter(times_ns).__next__
        try:
            self._replay(len(times_ns), batches, model_id)
        finally:
            tracker.clock_ns = clock_ns

    def _replay(self, events: int, batches: LoaderPass, model_id: int) -> None:
        """Take so many events of a plain step, whose times the clock of the tracker returns."""
        plain, tracker = self.plain, self.tracker
        if events > 0:
            self.cycle.has_batch = True
            tracker.batch_requested()
        if events >= ARRIVED:
            self.loaders.delivered(batches)
            self.batch_arrived(plain.samples)
        if events >= CALLED:
            tracker.forward_began(has_gradients=True, is_evaluating=False)
            self.under_way.has_begun = self.under_way.has_trained = True
            self._leader, self._inputs = model_id, plain.sizes
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
        plain, batches, key = self.plain, self.loaders.newest(), next(iter(self.cycle.members), 0)
        if batches is None or self.model_id is None or not plain.may_begin(self.step):
            return
        if not (self._is_plain() and batches.is_tried and key in self.training.references):
            return
        plain.expect(batches, self.model_id, key, self._timer)
        steps = self.steps
        self._columns = steps.recorder.columns
        self._quiet_until_step, self._quiet_until_ns = steps.controller.quiet_until()
        if not steps.records_alone:
            self._quiet_until_step = 0
        elif plain.is_recorded:
            # The recorder decides on the reading of memory before a step that may reach its time.
            memory_ns = steps.memory.due_ns - 2 * self._progress.last_step_ns
            self._quiet_until_ns = min(self._quiet_until_ns, memory_ns)
        if steps.recorder.is_behind:
            self._quiet_until_step = 0

    def _is_plain(self) -> bool:
        """Return whether the next step may be a plain one, as far as the settings and the script's state
        say."""
        timer, cycle, calls = self._timer, self.cycle, self.calls
        if timer.lap is not None or timer.end_device is not None or self.manual is not None:
            return False
        if self.is_discovering or self.is_loading or self.has_ended:
            return False
        if len(cycle.members) != 1 or cycle.done or cycle.has_batch or not self.tracker.is_at_start:
            return False
        return (
            self._scaled == (None, None)
            and self.loaders.is_quiet
            and self.rates.is_own
            and calls.is_own
            and calls.tidy is self._switches.own_tidy
            and not self.training.settings.empty_cache_every
            and self.autocast.is_plain
        )
