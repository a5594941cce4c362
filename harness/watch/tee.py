"""Rows of steps on their way from the recorder to the log, and who looks at them as they pass."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from harness.records.run import StepRow

# New rows each time it is called, in order.
Feed = Callable[[], Sequence[StepRow]]
# A guard's `run`.
Run = Callable[[str, Callable[[], None]], bool]


def tee(feed: Feed, run: Run, takers: Mapping[str, Callable[[Sequence[StepRow]], None]]) -> Feed:
    """`feed`, with its rows given to each of `takers` too; they run guarded, so that the log gets its rows in
    any case."""

    def through() -> Sequence[StepRow]:
        rows = feed()
        if rows:
            for name, take in takers.items():
                run(name, partial(take, rows))
        return rows

    return through
