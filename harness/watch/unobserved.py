"""Blocks of unobserved steps, for the measurement of the overhead in the run itself.

A step of such a block is that of a plain loop: no phases, device events, memory or loss, only the time of its
end, and its samples and tokens in the sums over the block. Commands are still carried out, and end the block.
"""

import sys
from collections.abc import Callable
from typing import NamedTuple

from harness.analysis.timing.overhead import MAX_BLOCK_NS, BlockPlan
from harness.records.overhead import UnobservedRow
from harness.watch.boundary import Boundary, StepAction
from harness.watch.context import RunContext
from harness.watch.timing import StepTimer
from harness.watch.training import Training

# Blocks under the same settings: then the interval is as narrow as it gets for its price.
MOST = 24

# Steps until the next try when something else was going on. A prime, so that tries do not fall into step with
# what happens every 10 or 64 steps.
_AGAIN = 97


class UnobservedBlock(NamedTuple):
    """Steps that went unobserved. `ends_ns` are the first one's start and the end of each, on the timer's
    clock."""

    row: UnobservedRow
    ends_ns: tuple[int, ...]
    # False: something cut in.
    is_whole: bool


class Unobserved(StepAction):
    """Schedule of the blocks. Used on the training thread, after all other actions."""

    def __init__(
        self,
        context: RunContext,
        training: Training,
        timer: StepTimer,
        plan: BlockPlan,
        put: Callable[[UnobservedBlock], None],
    ) -> None:
        """`put` receives each block."""
        self._marks = context.marks
        self._progress = context.progress
        self._training = training
        self._timer = timer
        self._plan = plan
        self._put = put
        self._due = plan.apart
        self._version = 0
        self._blocks = 0
        self._open: UnobservedRow | None = None
        self._ends_ns: list[int] = []
        self._tried = (0, timer.now())

    @property
    def due(self) -> int:
        """The step before which a block begins or ends."""
        return self._due

    def before_step(self, boundary: Boundary) -> None:
        """Begin or end a block before the next step, if due."""
        step = boundary.step
        if self._open is not None:
            if step >= self._due or self._timer.is_observing:  # Something else interrupted it.
                self._due = self._open.first_step + self._plan.apart
                self.close()
            return
        if step < self._due:
            return
        tried, self._tried = self._tried, (step, self._timer.clock_ns())
        if self._marks.settings_version != self._version:
            self._version, self._blocks = self._marks.settings_version, 0
        if self._blocks >= MOST or not self._training.settings.measure_overhead:
            self._due = step + self._plan.apart
        elif boundary.flags or boundary.is_capturing or not self._fits(step, tried):
            self._due = step + _AGAIN
        else:
            self._begin(step)

    def abort(self, step: int, why: str) -> None:
        """End the open block; steps are observed from here on."""
        del step, why
        self.close()

    def close(self) -> None:
        """End the open block, whole or not; steps are observed from here on. Idempotent."""
        row, self._open = self._open, None
        if row is None:
            return
        ends_ns = tuple(self._ends_ns)
        is_whole = not self._timer.is_observing and len(ends_ns) == self._plan.steps + 1
        if not self._timer.is_observing:
            self._timer.restart()
        samples, tokens = self._progress.unobserved_samples, self._progress.unobserved_tokens
        self._progress.unobserve(None)
        steps = len(ends_ns) - 1
        if steps:
            whole = row._replace(
                last_step=row.first_step + steps - 1,
                t_ns=ends_ns[-1] - self._progress.zero_ns,
                wall_ns=ends_ns[-1] - ends_ns[0],
                samples=samples,
                tokens=tokens or None,
            )
            self._blocks += is_whole
            self._put(UnobservedBlock(whole, ends_ns, is_whole))

    def _fits(self, step: int, tried: tuple[int, int]) -> bool:
        """Return whether a block fits before the run's end, and is short enough at the recent step time."""
        plan, last = self._plan, self._training.settings.max_steps
        needed = 2 * plan.steps + plan.discarded
        recent_ns = (self._tried[1] - tried[1]) / max(1, step - tried[0])
        return (
            step + needed <= (sys.maxsize if last is None else last)
            and recent_ns * plan.steps <= MAX_BLOCK_NS
        )

    def _begin(self, step: int) -> None:
        self._open = UnobservedRow(step, step, 0, 0, 0, None, self._version)
        self._ends_ns = [self._timer.clock_ns()]
        self._timer.unobserve(self._ends_ns)
        self._progress.unobserve(self._ends_ns)
        self._due = step + self._plan.steps
