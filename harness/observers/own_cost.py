"""Compares steps that went unobserved with the observed ones around them, as their rows pass to the log."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Protocol

from harness.analysis.timing.own_cost import Comparison, Plan, compare, own_cost, sentence
from harness.own_cost_records import OwnCostRow, UnobservedRow
from harness.records import StepRow
from harness.train.unobserved import Block


class CostJournal(Protocol):
    """Where it is written down; never blocks."""

    def put(self, row: UnobservedRow | OwnCostRow) -> None:
        """Record a row."""
        ...


class OwnCostMeter:
    """Blocks come from the training thread, rows pass on the writer's, where all the work is done."""

    def __init__(self, plan: Plan, put: Callable[[UnobservedRow | OwnCostRow], None]) -> None:
        self._plan = plan
        self._put = put
        self._blocks: deque[Block] = deque()
        self._recent: deque[StepRow] = deque(maxlen=plan.steps)
        self._open: Block | None = None
        self._beside: list[StepRow] = []
        self._version = 0
        self._found: list[Comparison] = []

    def block_ended(self, block: Block) -> None:
        """Take a block; for the training thread."""
        self._put(block.row)
        self._blocks.append(block)

    def passing(
        self, feed: Callable[[], Sequence[StepRow]], run: Callable[[str, Callable[[], None]], bool]
    ) -> Callable[[], Sequence[StepRow]]:
        """`feed`, with its rows passing here; `run` is a guard's, so that the log gets them in any case."""

        def through() -> Sequence[StepRow]:
            rows = feed()
            if rows:
                run("own cost", lambda: self.take(rows))
            return rows

        return through

    def take(self, rows: Iterable[StepRow]) -> None:
        """Look at `rows`, which come in order."""
        if self._blocks:
            block = self._blocks.popleft()
            self._open, self._beside = (block if block.is_whole else None), []
            self._collect(self._recent)
        self._collect(rows)
        self._recent.extend(rows)

    def _collect(self, rows: Iterable[StepRow]) -> None:
        block, plan = self._open, self._plan
        if block is None:
            return
        first, last = block.row.first_step, block.row.last_step + plan.discarded
        for row in rows:
            if first - plan.steps <= row.step < first or last < row.step <= last + plan.steps:
                self._beside.append(row)
            if row.step >= last + plan.steps:
                self._open = None
                self._compare(block)
                return

    def _compare(self, block: Block) -> None:
        """Compare the block with the steps beside it, unless something was special about one of them."""
        version, steps = block.row.settings_version, self._plan.steps
        beside = [row.step_ns for row in self._beside if not row.flags and row.settings_version == version]
        if len(beside) != 2 * steps:
            return
        if version != self._version:
            self._version, self._found = version, []
        without = [end - start for start, end in pairwise(block.ends_ns)][self._plan.discarded :]
        self._found.append(compare(self._plan, beside[:steps], without, beside[steps:]))
        cost = own_cost(self._found)
        if cost is None:
            return
        newest = self._beside[-1]
        self._put(
            OwnCostRow(
                newest.t_ns,
                newest.step,
                version,
                cost.comparisons,
                round(cost.step_ns),
                round(cost.extra_ns),
                round(cost.low_ns),
                round(cost.high_ns),
                sentence(cost),
            )
        )
