"""The statements that store steps, with as few columns as a run has.

On a CPU a third of a step's columns is never measured. Binding them and aggregating them in the rollups took
4 of the 14 µs that the writer spent per step, on the core beside the one that trains.
"""

import typing
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

from harness.records import StepRow
from harness.store.rollups import LEVELS, STEP_ROLLUPS, step_rollup_sql

# Steps in one INSERT: the interpreter lock changes hands once or twice a statement, and each time training
# waits. So any number of steps takes few statements.
CHUNKS = (64, 32, 16, 8, 4, 2, 1)

_OPTIONAL = frozenset(
    name for name, hint in typing.get_type_hints(StepRow).items() if type(None) in typing.get_args(hint)
)


class StepSql(NamedTuple):
    """The statements for steps in which some columns are NULL throughout."""

    # By how many steps they insert: the sizes of `CHUNKS`.
    inserts: dict[int, str]
    # By level, from 1 on.
    rollups: tuple[str, ...]
    # What of a step is bound.
    present: Callable[[StepRow], tuple[Any, ...]]

    def values(self, steps: Sequence[StepRow]) -> tuple[Any, ...]:
        """The parameters of the statement that inserts so many steps."""
        return tuple(chain.from_iterable(map(self.present, steps)))


class AbsentColumns:
    """The columns that were NULL in every step of one log so far."""

    def __init__(self, absent: frozenset[str] = _OPTIONAL) -> None:
        self._set(absent)

    def _set(self, absent: frozenset[str]) -> None:
        self._absent = absent
        places = [StepRow._fields.index(name) for name in sorted(absent)]
        # Twice the last one: of a single place `itemgetter` would give the value and no tuple.
        self._pick = itemgetter(*places, places[-1]) if places else None
        self._nothing = (None,) * (len(places) + 1)

    def sql_for(self, steps: Sequence[StepRow]) -> StepSql:
        """The statements for `steps`, the next ones of the log, and for its rollups."""
        if self._pick is not None and not all(map(self._nothing.__eq__, map(self._pick, steps))):
            seen = [name for name in self._absent if any(getattr(row, name) is not None for row in steps)]
            self._set(self._absent.difference(seen))
        return step_sql(self._absent)


ALL_PRESENT = frozenset[str]()


@cache
def step_sql(absent: frozenset[str]) -> StepSql:
    """The statements for steps in which the columns `absent` are NULL."""
    fields = [name for name in StepRow._fields if name not in absent]
    values = "(" + ", ".join("?" * len(fields)) + ")"
    insert = f"INSERT INTO steps ({', '.join(fields)}) VALUES "
    plotted = absent.intersection(STEP_ROLLUPS.spread)
    return StepSql(
        {rows: insert + ", ".join([values] * rows) for rows in CHUNKS},
        tuple(step_rollup_sql(level, plotted) for level in range(1, LEVELS + 1)),
        itemgetter(*map(StepRow._fields.index, fields)),
    )
