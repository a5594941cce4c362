"""Comparison of unobserved steps with the observed ones around them, as their rows pass to the log."""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise

from harness.analysis.timing.overhead import (
    BlockComparison,
    BlockPlan,
    compare_block,
    estimate_overhead,
    sentence,
)
from harness.records.overhead import OverheadRow, UnobservedRow
from harness.records.run import StepRow
from harness.watch.unobserved import UnobservedBlock


class OverheadMeter:
    """Receives blocks from the training thread, and rows on the writer's thread, which does all the work.

    Attributes:
        plan: the sizes of blocks.
    """

    def __init__(self, plan: BlockPlan, put: Callable[[UnobservedRow | OverheadRow], None]) -> None:
        self.plan = plan
        self._put = put
        self._ended: deque[UnobservedBlock] = deque()
        self._waiting: list[UnobservedBlock] = []
        self._rows: list[StepRow] = []
        self._version = 0
        self._comparisons: list[BlockComparison] = []

    def block_ended(self, block: UnobservedBlock) -> None:
        """Add a block; for the training thread."""
        self._put(block.row)
        if block.is_whole:
            self._ended.append(block)

    def add_rows(self, rows: Sequence[StepRow]) -> None:
        """Compare blocks as their neighbors arrive in `rows`, which come in order."""
        self._rows += rows
        while self._ended:
            self._waiting.append(self._ended.popleft())
        while (
            self._waiting and self._rows and self._rows[-1].step >= self._last_needed_step(self._waiting[0])
        ):
            self._compare(self._waiting.pop(0))
        if not self._waiting:
            del self._rows[: -self.plan.steps]

    def _last_needed_step(self, block: UnobservedBlock) -> int:
        return block.row.last_step + self.plan.discarded + self.plan.steps

    def _compare(self, block: UnobservedBlock) -> None:
        """Compare the block with the steps around it, unless one of them is flagged."""
        version, steps, last = block.row.settings_version, self.plan.steps, self._last_needed_step(block)
        usual = [row for row in self._rows if not row.flags and row.settings_version == version]
        before = [row.step_ns for row in usual if 0 < block.row.first_step - row.step <= steps]
        after = [row.step_ns for row in usual if 0 <= last - row.step < steps]
        if len(before) != steps or len(after) != steps:
            return
        if version != self._version:
            self._version, self._comparisons = version, []
        without = [end - start for start, end in pairwise(block.ends_ns)][self.plan.discarded :]
        self._comparisons.append(compare_block(self.plan, before, without, after))
        overhead = estimate_overhead(self._comparisons)
        if overhead is None:
            return
        self._put(
            OverheadRow(
                self._rows[-1].t_ns,
                last,
                version,
                overhead.comparisons,
                round(overhead.step_ns),
                round(overhead.extra_ns),
                round(overhead.low_ns),
                round(overhead.high_ns),
                sentence(overhead),
            )
        )
