"""The boundary between two steps, and the one protocol of actions there.

Snapshots, profiles, inspections, limits, changes of settings and the measurement of overhead are each a
`StepAction`; the step controller has them in a list.
"""

import sys
from typing import NamedTuple

from harness.records.run import CommandRow, RunState, StepFlag
from harness.watch.context import Marks
from harness.watch.memory import MemoryWatch
from harness.watch.timing import StepTimer

# The number of a step that does not come.
NEVER = sys.maxsize

# Stands for the step that is due: a moment may be due before it.
TIMED = -1

# Steps at the start that are left out of statistics: lazy initialization, allocator growth, cuDNN search.
WARM_UP_STEPS = 5

# Steps after a change that are left out of statistics.
TRANSITION_STEPS = 5


class Outcome(NamedTuple):
    """The end of a loop: its state, and the reason."""

    state: RunState
    message: str


class Boundary:
    """The state of a run between two steps.

    Attributes:
        step: the number of the step that comes next.
        due: the number of the step before which something is to be done, when nothing is requested.
        outcome: why the run ends before `step`; None: it goes on.
        unsettled_until: the last step that statistics leave out.
        is_capturing: whether a snapshot, a profile or a measurement is in progress.
        is_paused: whether the run waits for a resume.
        pauses: how often the run was paused.
        paused_ns: how long it was paused.
    """

    def __init__(self, marks: Marks, memory: MemoryWatch, timer: StepTimer) -> None:
        self._marks = marks
        self._memory = memory
        self._timer = timer
        self._unsettled_flag = StepFlag.WARM_UP
        self.step = 1
        self.due = 0
        self.outcome: Outcome | None = None
        self.unsettled_until = WARM_UP_STEPS
        self.is_capturing = False
        self.is_paused = False
        self.pauses = 0
        self.paused_ns = 0

    @property
    def is_settled(self) -> bool:
        """Return whether the next step counts in statistics."""
        return self.step > self.unsettled_until

    @property
    def highest_peak_bytes(self) -> int | None:
        """Return the highest peak of the allocated memory since the last change; None: unknown."""
        return self._memory.highest_peak_bytes

    @property
    def flags(self) -> int:
        """The flags of the next step so far."""
        return self._marks.flags

    def flag(self, flag: StepFlag) -> None:
        """Mark the next step."""
        self._marks.flags |= int(flag)

    def begin_flags(self) -> None:
        """Reset the flags of the next step."""
        self._marks.flags = 0 if self.is_settled else int(self._unsettled_flag)

    def unsettle(self, step: int) -> None:
        """Flag the steps from `step` on as transition, and read the memory of each and of the first after."""
        self._memory.restart(TRANSITION_STEPS + 1)
        if step > self.unsettled_until:
            self._unsettled_flag = StepFlag.TRANSITION
        self.unsettled_until = max(self.unsettled_until, step + TRANSITION_STEPS - 1)
        self._marks.flags |= int(self._unsettled_flag)
        self.due = 0

    def restart(self) -> None:
        """Begin the chain of step times anew: time since the last step belongs to no step."""
        self._timer.restart()

    def changed(self, step: int) -> None:
        """Flag the steps after a change of settings before `step`."""
        self.unsettle(step)
        self.restart()

    def end(self, state: RunState, message: str) -> None:
        """End the run before the next step."""
        self.outcome = Outcome(state, message)


class StepAction:
    """An action between two steps, on the training thread. The base class does nothing."""

    # The kinds of commands that it carries out.
    commands: frozenset[str] = frozenset()
    # The noun for its captures of steps, which two at a time would distort; empty: it takes none.
    capture = ""

    @property
    def due(self) -> int:
        """The number of the step before its next own action at the latest."""
        return NEVER

    @property
    def deadline_ns(self) -> int | None:
        """The time of its next own action at the latest, on the run's clock."""
        return None

    @property
    def is_busy(self) -> bool:
        """Return whether `before_step` is to be called before the very next step too."""
        return False

    @property
    def is_capturing(self) -> bool:
        """Return whether a capture is requested or in progress."""
        return bool(self.capture) and self.is_busy

    def before_request(self, command: CommandRow, boundary: Boundary) -> None:
        """Prepare for `command`, which another action is about to carry out."""

    def request(self, command: CommandRow, boundary: Boundary) -> None:
        """Carry out `command`, now or over the next steps, and answer it."""

    def before_step(self, boundary: Boundary) -> None:
        """Do the work due before the next step. Called if the step is flagged, something is due, or any
        action is busy."""

    def finish(self, boundary: Boundary) -> None:
        """Write the results so far; the run ends before the next step."""

    def abort(self, step: int, why: str) -> None:
        """Undo its changes to the training after the last step, `step`. Idempotent."""
