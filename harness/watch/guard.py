"""Keeps training alive when something that watches it breaks: it is dropped, and a warning says so.

`FailureGuard` and the dispatcher of steps are the only places in the training process that catch everything.
"""

import traceback
from collections import Counter
from collections.abc import Callable

# After so many failures in a row a job is given up; fewer may be a passing fault of disk or driver.
MOST_FAILURES = 5


class FailureGuard:
    """Runs what must not break training. What keeps raising is not run again, and `report` is called."""

    def __init__(self, report: Callable[[str, str], None]) -> None:
        """`report(name, error)` is called for each thing that was dropped."""
        self._report = report
        self._dropped: set[str] = set()
        self._failures: Counter[str] = Counter()

    def run(self, name: str, function: Callable[[], None]) -> bool:
        """Call `function` unless `name` was dropped before; whether it ran to its end. Dropped is what failed
        `MOST_FAILURES` times in a row."""
        if name in self._dropped:
            return False
        try:
            function()
        except Exception as error:  # noqa: BLE001  # the fail-open point of the sampler's threads
            self._failures[name] += 1
            if self._failures[name] >= MOST_FAILURES:
                self.drop(name, error)
            elif self._failures[name] == 1:
                traceback.print_exception(error)
            return False
        self._failures[name] = 0
        return True

    def drop(self, name: str, error: Exception) -> None:
        """Report what `name` raised, and never run it again."""
        self._dropped.add(name)
        traceback.print_exception(error)
        self._report(name, f"{type(error).__name__}: {error}")
