"""The step that nearly every script takes: one batch, one call of one model for training, one backward pass
and one step of one optimizer, in this order, on the CPU. Where no loader feeds the training, the batch is
missing.

Each of its events only adds the time to a list; everything else happens at its end. The general way, which
takes any order of events, costs more: between two operations of a training the processor's caches hold
neither code nor data of this package. At an event out of order `PlainObservation.leave_plain_step` has the
recorded ones taken in the general way.
"""

from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from typing import Any

from harness.analysis.oom.report import OomPhase
from harness.attach.guard import ScriptGuard
from harness.attach.numbering import ARRIVED, GRADIENTS_BEGAN, RETURNED, StepUnderWay
from harness.attach.passes import LoaderPass
from harness.records.run import Phase
from harness.watch.context import Progress
from harness.watch.rank_waits import RankWaits
from harness.watch.recorder import NO_COLUMNS, LastColumns, PendingStep
from harness.watch.steps import Steps
from harness.watch.timing import StepTimer, Times

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
UNKNOWN_SIZES: tuple[int | None, int | None] = (None, None)
# Steps until the next try after a step that was not plain, at most.
_LONGEST_PAUSE = 1_024


class PlainStep(StepUnderWay):
    """The step under way, as long as it is a plain one. Used on the training thread.

    A plain step is *quiet* if, at its end, no action between two steps is due and nothing is requested:
    nothing but its row is due then, and, after few of them, a measurement. Everything that quiet steps touch
    is in this one object, and what others need to know only once the steps are no longer quiet is theirs then
    (`PlainObservation`): between two operations of a training each object has to come from memory.

    Attributes:
        batches: the pass over a loader that feeds it; None without one.
        events_before_call: the number of events before the call of its model: those of its batch, or none.
        model_id: the id of its model.
        optimizer_id: the id of its optimizer.
        now: the clock; in unobserved steps one without time.
        is_likely: whether the newest step that was expected to be a plain one was.
        is_recorded: whether the step is observed.
        samples: samples of its batch.
        reads_sizes: whether the sizes of its model's inputs are needed.
        sizes: samples and tokens of its model's inputs; samples only if those of the batch are unknown.
        loss: its loss; None in unobserved steps.
        end_ns: the end of the newest step.
        until_ns: the first moment at which something may be due or to be measured.
        until_step: the first step that may not be quiet.
        columns: the last columns of the rows of quiet steps, see `Recorder.columns`.
        rank_waits: measures the waits for other ranks; None in a run of one process.
        clock_ns, progress, put, step_finished: of the watch, for the ends of steps.
    """

    clock_ns: Callable[[], int]
    progress: Progress
    put: Callable[[PendingStep], None]
    step_finished: Callable[[int], None]

    __slots__ = (
        "_pause",
        "_retry_step",
        "_run",
        "batches",
        "clock_ns",
        "columns",
        "end_ns",
        "events_before_call",
        "is_likely",
        "is_recorded",
        "loss",
        "model_id",
        "now",
        "optimizer_id",
        "progress",
        "put",
        "rank_waits",
        "reads_sizes",
        "samples",
        "sizes",
        "step_finished",
        "until_ns",
        "until_step",
    )

    def __init__(self, guard: ScriptGuard) -> None:
        """`guard` runs what may fail."""
        super().__init__()
        self._run = guard.run
        self.batches: LoaderPass | None = None
        self.events_before_call = 0
        self.model_id = self.optimizer_id = 0
        self.now: Callable[[], int] = perf_counter_ns
        self.is_recorded = True
        self.samples: int | None = None
        self.reads_sizes = True
        self.sizes = UNKNOWN_SIZES
        self.loss: Any = None
        self.end_ns = self.until_ns = self.until_step = 0
        self.columns: LastColumns = NO_COLUMNS
        self.rank_waits: RankWaits | None = None
        self._pause, self.is_likely = 1, False
        self._retry_step = 0

    def serve(self, steps: Steps) -> None:
        """Hand over `steps` from now on."""
        self.clock_ns, self.progress = steps.timer.clock_ns, steps.context.progress
        self.put, self.step_finished = steps.recorder.pending.append, steps.controller.step_finished

    @property
    def oom_phase(self) -> OomPhase:
        """The phase under way."""
        return _OOM_PHASES[len(self.times_ns)]

    def interrupt(self) -> None:
        """Let the step under way be no quiet one. Called from any thread, and from signal handlers."""
        self.until_step = 0

    def may_begin(self, step: int) -> bool:
        """Return whether `step` may be a plain one, by the steps before it."""
        return step >= self._retry_step

    def expect(self, batches: LoaderPass | None, model_id: int, optimizer_id: int, timer: StepTimer) -> None:
        """Expect plain steps from now on, of these and timed by `timer`."""
        self.batches, self.model_id, self.optimizer_id, self.is_plain = batches, model_id, optimizer_id, True
        self.is_recorded, self.loss, self.end_ns = timer.is_observing, None, timer.end_ns
        self.events_before_call = 0 if batches is None else ARRIVED
        self.samples, self.sizes = None, UNKNOWN_SIZES

    def expect_quiet(self, timer: StepTimer, *, reads_sizes: bool) -> None:
        """Expect quiet steps from now on, or, where the memory is to be read, one after which it is."""
        self.now = timer.now if timer.lap is None else partial(self._now_with_peak, timer.now, timer.lap)
        self.reads_sizes = reads_sizes

    def _now_with_peak(self, now: Callable[[], int], lap: Callable[[Phase], None]) -> int:
        """Return the time of an event. At the end of the forward and of the backward pass, where memory may
        be highest, its peak is noted after that time."""
        now_ns, events = now(), len(self.times_ns)
        if events == RETURNED:
            self._run(lap, Phase.FORWARD)
        elif events == GRADIENTS_BEGAN:
            self._run(lap, Phase.BACKWARD)
        return now_ns

    def leave(self, step: int) -> list[int]:
        """Expect no plain step any more; return the times of the events of `step`, and begin anew."""
        times_ns, has_loader = self.times_ns.copy(), self.batches is not None
        self.times_ns.clear()
        self.batches, self.model_id, self.optimizer_id, self.is_plain = None, 0, 0, False
        if times_ns or not has_loader:
            self._retry_step, self.is_likely = step + self._pause, False
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return times_ns

    def succeeded(self) -> None:
        """Plain steps were taken as expected."""
        self._pause, self.is_likely = 1, True

    def end(self, started_ns: int, end_ns: int) -> Times:
        """End the step, all of whose events have happened; return its times, each phase on its own."""
        times_ns = (started_ns, *self.times_ns, end_ns)
        self.times_ns.clear()
        return times_ns
