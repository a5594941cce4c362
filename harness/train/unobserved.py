"""Leaves a few steps unobserved, in blocks, so that what observing costs can be told in the very run.

A step of such a block is what a plain loop does: no phases, no device events, no memory, no loss taken along,
only the time of its end. What carries out commands stays on, and whatever it does ends the block.
"""

import sys
from collections.abc import Callable
from typing import NamedTuple, Protocol

from harness.analysis.timing.own_cost import LONGEST_NS, Plan
from harness.own_cost_records import UnobservedRow
from harness.train.journal import Marks
from harness.train.timing import StepTimer
from harness.train.workload import Workload

MOST = 24
"""Blocks under the same settings: then the interval is as narrow as it gets for its price."""

_AGAIN = 97
"""Steps until the next try when something else was going on. A prime, so that tries do not fall into step
with what happens every 10 or 64 steps."""


class Block(NamedTuple):
    """Steps that went unobserved. `ends_ns` are the first one's start and the end of each, on the timer's
    clock."""

    row: UnobservedRow
    ends_ns: tuple[int, ...]
    is_whole: bool
    """False: something cut in."""


class Watched(Protocol):
    """What follows the run's steps from other threads."""

    def unobserve(self, ends_ns: list[int] | None) -> None:
        """From now on steps end in `ends_ns`; None: they are observed again."""
        ...


class Unobserved:
    """Decides when. Used on the training thread.

    Attributes:
        due: `before_step` is to be called before a step of this number or higher.
    """

    def __init__(
        self,
        plan: Plan,
        workload: Workload,
        timer: StepTimer,
        marks: Marks,
        watched: Watched,
        put: Callable[[Block], None],
        is_busy: Callable[[], bool] = lambda: False,
        zero_ns: int = 0,
    ) -> None:
        """`put` is given each block; `is_busy` tells whether steps are being tracked or profiled. `zero_ns`
        is the run's start on the timer's clock."""
        self._plan = plan
        self._workload = workload
        self._timer = timer
        self._marks = marks
        self._watched = watched
        self._put = put
        self._is_busy = is_busy
        self._zero_ns = zero_ns
        self.due = plan.apart
        self._version = 0
        self._blocks = 0
        self._open: UnobservedRow | None = None
        self._ends_ns: list[int] = []
        self._tried = (0, timer.now())

    def before_step(self, step: int) -> None:
        """Begin or end a block before the step numbered `step`, if it is time."""
        if self._open is not None:
            self.close()
            self.due = step + self._plan.apart - self._plan.steps
            return
        tried, self._tried = self._tried, (step, self._timer.now())
        if self._marks.settings_version != self._version:
            self._version, self._blocks = self._marks.settings_version, 0
        if self._blocks >= MOST or not self._workload.settings.measure_own_cost:
            self.due = step + self._plan.apart
        elif self._marks.flags or self._is_busy() or not self._has_room(step, tried):
            self.due = step + _AGAIN
        else:
            self._begin(step)

    def close(self) -> None:
        """Hand over the block that is open, whole or not; from here on steps are observed. Idempotent."""
        row, self._open = self._open, None
        if row is None:
            return
        ends_ns = tuple(self._ends_ns)
        is_whole = self._timer.ends_ns is self._ends_ns and len(ends_ns) == self._plan.steps + 1
        if self._timer.ends_ns is self._ends_ns:
            self._timer.restart()
        self._watched.unobserve(None)
        taken = len(ends_ns) - 1
        if taken:
            whole = row._replace(
                last_step=row.first_step + taken - 1,
                t_ns=ends_ns[-1] - self._zero_ns,
                wall_ns=ends_ns[-1] - ends_ns[0],
                samples=row.samples * taken,
                tokens=None if row.tokens is None else row.tokens * taken,
            )
            self._blocks += is_whole
            self._put(Block(whole, ends_ns, is_whole))

    def _has_room(self, step: int, tried: tuple[int, int]) -> bool:
        """Whether a block fits before the run's end, and is short enough as steps were of late."""
        plan, last = self._plan, self._workload.settings.max_steps
        needed = 2 * plan.steps + plan.discarded
        recent_ns = (self._tried[1] - tried[1]) / max(1, step - tried[0])
        return (
            step + needed <= (sys.maxsize if last is None else last) and recent_ns * plan.steps <= LONGEST_NS
        )

    def _begin(self, step: int) -> None:
        workload = self._workload
        samples, tokens = workload.samples_per_step, workload.tokens_per_step
        self._open = UnobservedRow(step, step, 0, 0, samples, tokens, self._version)
        self._ends_ns = [self._timer.now()]
        self._timer.ends_ns = self._ends_ns
        self._watched.unobserve(self._ends_ns)
        self.due = step + self._plan.steps
