"""The time of each phase of a script's step under way."""

from collections.abc import Callable
from itertools import repeat

from harness.records.run import Phase
from harness.watch.timing import StepTimer

# LOSS is the time from the last call of the model to the backward pass, a part of the forward pass.
DATA_WAIT, COPY, FORWARD, BACKWARD, OPTIMIZER, OTHER, LOSS = PHASES = range(7)


class PhaseClock:
    """Times of the step under way, for `harness.attach.tracker`, which adds to them with each event.

    Attributes:
        clock_ns: the clock.
        last_ns: the time of the newest event.
        owes_mark: whether the mark of the step's last update on the device's clock is still to come.
    """

    def __init__(self, timer: StepTimer) -> None:
        self._timer = timer
        self.clock_ns = timer.clock_ns
        self.last_ns = timer.end_ns
        self.owes_mark = False
        # The time in each phase up to the newest event, and the phase since then.
        self._spent_ns = [0] * len(PHASES)
        self._phase = OTHER
        # The times, samples and whether there was a batch as the newest backward pass or update of the step
        # ended, and when; None: there was none, or the step is not observed.
        self._trained: tuple[list[int], int | None, bool, int] | None = None
        # The times as the first batch after that was requested, and when.
        self._requested: tuple[list[int], int] | None = None
        # The times as an evaluation may have begun after the batch of the step, and when.
        self._evaluated_from: tuple[list[int], int] | None = None

    def end_with_last_event(self) -> None:
        """Let the newest event be the end of the step: no further one comes. The device has no such end."""
        self.clock_ns, self._timer.end_device = repeat(self.last_ns).__next__, None

    def begin(self) -> None:
        """Begin the step where the timer does: after a pause that is later than the end of the one before."""
        self.last_ns = self._timer.end_ns

    def mark_update(self) -> None:
        """Mark the end of the step's last update on the device's clock."""
        self.owes_mark = False
        if (lap := self._timer.lap) is not None:
            lap(Phase.OPTIMIZER)

    def leave_out_search(self, search: Callable[[], None]) -> None:
        """Make a `search` for models, which is no part of the step: what was before it moves toward it."""
        began_ns = self.clock_ns()
        search()
        if not self._timer.is_observing:
            return
        duration_ns = self._timer.leave_out_since(began_ns)
        self.last_ns += duration_ns
        if self._trained is not None:
            self._trained = *self._trained[:3], self._trained[3] + duration_ns
        if self._requested is not None:
            self._requested = self._requested[0], self._requested[1] + duration_ns

    def evaluation_may_begin(self) -> None:
        """Note that a model is called in evaluation mode."""
        if self._evaluated_from is not None:
            return
        now_ns, spent_ns = self.clock_ns(), self._spent_ns.copy()
        if self._timer.is_observing:
            spent_ns[self._phase] += now_ns - self.last_ns
        self._evaluated_from = spent_ns, now_ns

    def leave_out_evaluation(self) -> int:
        """Go on with the step as it was before its evaluation; return the duration of that, 0 without one."""
        if self._evaluated_from is None:
            return 0
        (self._spent_ns, began_ns), self._phase = self._evaluated_from, OTHER
        duration_ns = self._timer.leave_out_since(began_ns)
        self.last_ns, self._evaluated_from = began_ns + duration_ns, None
        return duration_ns

    def _leave_loss(self, phase: int) -> None:
        """Add the time since the last call of the model to `phase`."""
        self._spent_ns[phase] += self._spent_ns[LOSS]
        self._spent_ns[LOSS] = 0
