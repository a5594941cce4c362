"""Protection of training against failures of the watch: a failing part is dropped, with a warning.

`FailureGuard` and the dispatcher of steps are the only places in the training process that catch everything.
"""

from collections import Counter
from collections.abc import Callable

from harness.notices import print_traceback

# After this many failures in a row a job is dropped; fewer may be a transient fault of disk or driver.
MOST_FAILURES = 5


class FailureGuard:
    """Runs functions that must not interrupt training. One that keeps raising is dropped and reported."""

    def __init__(self, report: Callable[[str, str], None]) -> None:
        """`report(name, error)` is called for each dropped function."""
        self._report = report
        self._dropped: set[str] = set()
        self._failures: Counter[str] = Counter()

    def run(self, name: str, function: Callable[[], None]) -> bool:
        """Call `function` unless `name` is dropped; return whether it completed. After `MOST_FAILURES`
        failures in a row it is dropped."""
        if name in self._dropped:
            return False
        try:
            function()
        except Exception as error:  # noqa: BLE001  # the fail-open point of the sampler's threads
            self._failures[name] += 1
            if self._failures[name] >= MOST_FAILURES:
                self.drop(name, error)
            elif self._failures[name] == 1:
                print_traceback(error)
            return False
        self._failures[name] = 0
        return True

    def drop(self, name: str, error: Exception) -> None:
        """Report the error of `name`, and never run it again."""
        self._dropped.add(name)
        print_traceback(error)
        self._report(name, f"{type(error).__name__}: {error}")
