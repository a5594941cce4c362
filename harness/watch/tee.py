"""A feed of rows of steps with additional consumers between the recorder and the log."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from harness.records.run import StepRow

# New rows each time it is called, in order.
Feed = Callable[[], Sequence[StepRow]]
# A guard's `run`.
Run = Callable[[str, Callable[[], None]], bool]


def tee(feed: Feed, run: Run, consumers: Mapping[str, Callable[[Sequence[StepRow]], None]]) -> Feed:
    """Return `feed` with its rows passed to each of `consumers` too; they run guarded, so the log gets its
    rows in any case."""

    def through() -> Sequence[StepRow]:
        rows = feed()
        if rows:
            for name, consume in consumers.items():
                run(name, partial(consume, rows))
        return rows

    return through
