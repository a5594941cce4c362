"""The time for searches through all objects of a process."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Searches that are made whatever they take: scripts with several models, or a training for each fold.
_FREE = 5
# The largest share of the time for further ones. A script may create an optimizer, or a copy of its model,
# for each task or image.
_MOST_SHARE = 0.02


class SearchBudget:
    """Limits the share of time that searches take: one took 50 to 80 ms in small scripts, and takes longer
    the more objects there are."""

    def __init__(self, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock_ns = clock_ns
        self._began_ns = clock_ns()
        self._spent_ns = self._searches = 0

    def permits(self) -> bool:
        """Return whether a search may be made now."""
        age_ns = self._clock_ns() - self._began_ns
        return self._searches < _FREE or self._spent_ns <= _MOST_SHARE * age_ns

    @contextmanager
    def spending(self) -> Iterator[None]:
        """The context of a search."""
        began_ns = self._clock_ns()
        try:
            yield
        finally:
            self._spent_ns += self._clock_ns() - began_ns
            self._searches += 1
