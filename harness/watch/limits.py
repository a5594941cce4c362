"""End of a run at the limit of steps or of seconds."""

from collections.abc import Callable

from harness import words
from harness.records.run import RunState
from harness.watch.boundary import NEVER, Boundary, StepAction
from harness.watch.context import RunContext
from harness.watch.training import Training


class RunLimits(StepAction):
    """The limits in effect. Time counts from its construction, without pauses."""

    def __init__(
        self, context: RunContext, training: Training, end_in_time: Callable[[str], None] | None = None
    ) -> None:
        """`end_in_time` is called with the message, once, instead of ending the run at the time limit."""
        self._clock_ns = context.clock_ns
        self._end_in_time = end_in_time
        self._has_called = False
        self._training = training
        self._began_ns = context.clock_ns()
        self._paused_ns = 0

    @property
    def due(self) -> int:
        """One step after the last."""
        most = self._training.settings.max_steps
        return NEVER if most is None else most + 1

    @property
    def deadline_ns(self) -> int | None:
        """The end of the time limit on the run's clock."""
        seconds = self._training.settings.max_seconds
        if seconds is None or self._has_called:
            return None
        return self._began_ns + self._paused_ns + int(seconds * 1e9)

    def before_step(self, boundary: Boundary) -> None:
        """End the run where a limit is reached."""
        settings, steps = self._training.settings, boundary.step - 1
        if settings.max_steps is not None and steps >= settings.max_steps:
            boundary.end(RunState.FINISHED, _all_steps(steps, settings.max_steps))
            return
        self._paused_ns = boundary.paused_ns
        deadline_ns = self.deadline_ns
        if deadline_ns is None or self._clock_ns() < deadline_ns:
            return
        message = f"Reached the limit of {settings.max_seconds:g} s."
        if self._end_in_time is None:
            boundary.end(RunState.FINISHED, message)
        else:
            self._has_called = True
            self._end_in_time(message)


def _all_steps(steps: int, most: int) -> str:
    if steps == most:
        return "Took its one step." if most == 1 else f"Took all {most:,} steps."
    return f"Took {words.plural(steps, 'step')}; the limit is {most:,}."
