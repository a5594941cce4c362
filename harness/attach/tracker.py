"""The phases of a script's step, from the events at torch's entry points.

A step lasts from the end of the one before to its own, as in `harness.watch.timing`. Each moment of it
belongs to one phase or to none (the residual). Evaluation between two steps belongs to no step: the next one
then begins with the first batch after it. A call of the model without gradients, or in evaluation mode, is
evaluation unless a backward pass follows before the next batch.
"""

from collections.abc import Callable

from harness.analysis.oom.report import OomPhase
from harness.records.run import Phase
from harness.watch.timing import StepTimer, Times

_DATA_WAIT, _COPY, _FORWARD, _BACKWARD, _OPTIMIZER, _OTHER = range(6)
_OOM_PHASES = (
    OomPhase.DATA,
    OomPhase.COPY,
    OomPhase.FORWARD,
    OomPhase.BACKWARD,
    OomPhase.OPTIMIZER,
    OomPhase.BETWEEN,
)


class StepTracker:
    """Collects the times of one step after the other; used on the training thread.

    Attributes:
        samples: samples of the batches since the last step ended; None: no loader returned a batch.
        evaluated_ns: called with the duration of an evaluation, when training goes on after it.
    """

    def __init__(self, timer: StepTimer, *, copies: bool, evaluated_ns: Callable[[int], None]) -> None:
        """`copies` is whether batches are copied to a device between loader and forward pass."""
        self._timer = timer
        self._clock_ns = timer.clock_ns
        self._after_batch = _COPY if copies else _OTHER
        self._evaluated_ns = evaluated_ns
        self._spent_ns = [0] * 6
        self._phase = _OTHER
        self._last_ns = timer.end_ns
        self._resumed = _OTHER
        self._is_updating = False
        self._has_evaluated = False
        self._has_batch = False
        self.samples: int | None = None

    @property
    def oom_phase(self) -> OomPhase:
        """The phase under way."""
        return _OOM_PHASES[self._phase]

    def batch_requested(self) -> None:
        """A loader is about to return a batch."""
        if self._has_evaluated:
            self._restart()
        self._resumed = self._phase
        self._enter(_DATA_WAIT)

    def batch_arrived(self, samples: int | None) -> None:
        """A loader returned a batch of `samples`; None: it has no more, or their number is unknown."""
        self._enter(self._after_batch if self._phase == _DATA_WAIT else self._resumed)
        self._lap(Phase.DATA_WAIT)
        self._has_batch = True
        if samples is not None:
            self.samples = (self.samples or 0) + samples

    def forward_began(self, *, is_training: bool) -> None:
        """The model is called, for training or, without gradients or in evaluation mode, for evaluation."""
        if not is_training:
            self._has_evaluated = True
        elif self._has_evaluated and not self._has_batch:
            self._restart()
        if self._phase != _FORWARD:
            self._enter(_FORWARD)
            self._lap(Phase.H2D)

    def backward_began(self) -> None:
        """Gradients are about to be computed."""
        self._has_evaluated = False
        self._enter(_BACKWARD)
        self._lap(Phase.FORWARD)

    def backward_ended(self) -> None:
        """Gradients were computed."""
        self._enter(_OPTIMIZER if self._is_updating else _OTHER)
        self._lap(Phase.BACKWARD)

    def update_began(self) -> None:
        """An optimizer steps; with a closure, it calls forward and backward itself."""
        self._is_updating, self._has_evaluated = True, False
        self._enter(_OPTIMIZER)

    def update_ended(self) -> None:
        """An optimizer has stepped, or a GradScaler skipped it."""
        self._is_updating = False
        self._enter(_OTHER)
        self._lap(Phase.OPTIMIZER)

    def end(self) -> Times:
        """End the step; returns its times, and starts the next one."""
        timer, spent_ns = self._timer, self._spent_ns
        started_ns = at_ns = timer.end_ns
        self._enter(_OTHER)
        times_ns = [started_ns, at_ns]
        for phase in range(_OTHER):
            at_ns += spent_ns[phase]
            times_ns.append(at_ns)
        timer.end_ns = self._last_ns
        times_ns.append(self._last_ns)
        self._clear()
        return tuple(times_ns)

    def restart(self) -> None:
        """Begin the step anew: what happened since the last one ended belongs to none."""
        self._timer.restart()
        self._last_ns = self._timer.end_ns
        self._clear()

    def _restart(self) -> None:
        began_ns = self._timer.end_ns
        self.restart()
        self._evaluated_ns(self._last_ns - began_ns)

    def _clear(self) -> None:
        self._spent_ns = [0] * 6
        self._phase = self._resumed = _OTHER
        self._has_evaluated = self._has_batch = self._is_updating = False
        self.samples = None

    def _enter(self, phase: int) -> None:
        now_ns = self._clock_ns()
        self._spent_ns[self._phase] += now_ns - self._last_ns
        self._last_ns, self._phase = now_ns, phase

    def _lap(self, phase: Phase) -> None:
        lap = self._timer.lap
        if lap is not None:
            lap(phase)
