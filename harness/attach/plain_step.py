"""The step that nearly every script takes: one batch, one call of one model for training, one backward pass
and one step of one optimizer, in this order, on the CPU.

Each of its events only adds the time to a list; everything else happens at its end. The general way, which
takes any order of events, costs more: between two operations of a training the processor's caches hold
neither code nor data of this package. At an event out of order `PlainObservation.leave_plain_step` has the
recorded ones taken in the general way.
"""

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from harness.analysis.oom.report import OomPhase
from harness.attach.passes import LoaderPass
from harness.watch.timing import StepTimer, Times

# The number of events so far: of a step in which a batch was requested, has arrived, and so on.
ARRIVED, CALLED, RETURNED, GRADIENTS_BEGAN, GRADIENTS_ENDED, UPDATE_BEGAN = range(2, 8)

# By the number of events so far.
_OOM_PHASES = (
    OomPhase.BETWEEN,
    OomPhase.DATA,
    OomPhase.BETWEEN,
    OomPhase.FORWARD,
    OomPhase.FORWARD,
    OomPhase.BACKWARD,
    OomPhase.BETWEEN,
    OomPhase.OPTIMIZER,
)
# Steps until the next try after a step that was not plain, at most.
_LONGEST_PAUSE = 1_024


class PlainStep:
    """The step under way, as long as it is a plain one. Used on the training thread.

    Attributes:
        times_ns: the times of its events so far.
        batches: the pass over a loader that feeds it; None: the step is not expected to be plain.
        model_id: the id of its model.
        optimizer_id: the id of its optimizer.
        now: the clock; in unobserved steps one without time.
        is_recorded: whether the step is observed.
        samples: samples of its batch.
        sizes: samples and tokens of its model's inputs; samples only if those of the batch are unknown.
        loss: its loss; None in unobserved steps.
    """

    __slots__ = (
        "_pause",
        "_retry_step",
        "batches",
        "is_recorded",
        "loss",
        "model_id",
        "now",
        "optimizer_id",
        "samples",
        "sizes",
        "times_ns",
    )

    def __init__(self) -> None:
        self.times_ns: list[int] = []
        self.batches: LoaderPass | None = None
        self.model_id = self.optimizer_id = 0
        self.now: Callable[[], int] = perf_counter_ns
        self.is_recorded = True
        self.samples: int | None = None
        self.sizes: tuple[int | None, int | None] = (None, None)
        self.loss: Any = None
        self._pause = 1
        self._retry_step = 0

    @property
    def oom_phase(self) -> OomPhase:
        """The phase under way."""
        return _OOM_PHASES[len(self.times_ns)]

    def may_begin(self, step: int) -> bool:
        """Return whether `step` may be a plain one, by the steps before it."""
        return step >= self._retry_step

    def expect(self, batches: LoaderPass, model_id: int, optimizer_id: int, timer: StepTimer) -> None:
        """Expect plain steps from now on, of these and timed by `timer`."""
        self.batches, self.model_id, self.optimizer_id = batches, model_id, optimizer_id
        self.now, self.is_recorded, self.loss = timer.now, timer.is_observing, None

    def leave(self, step: int) -> list[int]:
        """Expect no plain step any more; return the times of the events of `step`, and begin anew."""
        times_ns = self.times_ns.copy()
        self.times_ns.clear()
        self.batches, self.model_id, self.optimizer_id = None, 0, 0
        if times_ns:
            self._retry_step = step + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return times_ns

    def succeeded(self) -> None:
        """Plain steps were taken as expected."""
        self._pause = 1

    def end(self, started_ns: int, end_ns: int) -> Times:
        """End the step, all of whose events have happened; return its times, each phase on its own."""
        times_ns = (started_ns, *self.times_ns, end_ns)
        self.times_ns.clear()
        return times_ns
