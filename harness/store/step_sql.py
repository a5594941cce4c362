"""The statements that store steps, with only the columns that a run measures.

On a CPU a third of a step's columns is never measured. Binding and aggregating them took 4 of the 14 µs that
the writer spent per step, on the core next to the one that trains.
"""

import typing
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

from harness.records.run import StepRow
from harness.store.rollups import LEVELS, STEP_ROLLUPS, step_rollup_sql

# Steps per INSERT. Each statement passes the interpreter lock once or twice, and training waits each time;
# with these sizes any number of steps takes few statements.
CHUNKS = (64, 32, 16, 8, 4, 2, 1)

_OPTIONAL = frozenset(
    name for name, hint in typing.get_type_hints(StepRow).items() if type(None) in typing.get_args(hint)
)


class StepSql(NamedTuple):
    """The statements for steps in which some columns are always NULL."""

    # By the number of steps: the sizes of `CHUNKS`.
    inserts: dict[int, str]
    # By level, from 1 on.
    rollups: tuple[str, ...]
    # Returns the bound values of a step.
    present: Callable[[StepRow], tuple[Any, ...]]

    def values(self, steps: Sequence[StepRow]) -> tuple[Any, ...]:
        """Return the parameters of the statement that inserts these steps."""
        return tuple(chain.from_iterable(map(self.present, steps)))


class AbsentColumns:
    """The columns that have been NULL in every step of one log so far."""

    def __init__(self, absent: frozenset[str] = _OPTIONAL) -> None:
        self._set(absent)

    def _set(self, absent: frozenset[str]) -> None:
        self._absent = absent
        places = [StepRow._fields.index(name) for name in sorted(absent)]
        # The last position twice: with a single position `itemgetter` would return a value instead of a
        # tuple.
        self._pick = itemgetter(*places, places[-1]) if places else None
        self._nothing = (None,) * (len(places) + 1)

    def sql_for(self, steps: Sequence[StepRow]) -> StepSql:
        """Return the statements for `steps`, the next steps of the log, and for its rollups."""
        if self._pick is not None and not all(map(self._nothing.__eq__, map(self._pick, steps))):
            present = [name for name in self._absent if any(getattr(row, name) is not None for row in steps)]
            self._set(self._absent.difference(present))
        return step_sql(self._absent)


ALL_PRESENT = frozenset[str]()


@cache
def step_sql(absent: frozenset[str]) -> StepSql:
    """Return the statements for steps in which the columns `absent` are NULL."""
    fields = [name for name in StepRow._fields if name not in absent]
    values = "(" + ", ".join("?" * len(fields)) + ")"
    insert = f"INSERT INTO steps ({', '.join(fields)}) VALUES "
    plotted = absent.intersection(STEP_ROLLUPS.spread)
    return StepSql(
        {rows: insert + ", ".join([values] * rows) for rows in CHUNKS},
        tuple(step_rollup_sql(level, plotted) for level in range(1, LEVELS + 1)),
        itemgetter(*map(StepRow._fields.index, fields)),
    )
