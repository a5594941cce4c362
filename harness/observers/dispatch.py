"""Tells observers what happens in a run, and keeps training alive when one of them breaks.

This is the one place in the training process that catches everything: a broken observer is dropped, its
traceback goes to the run's output, and a warning says so on the page. Training goes on.
"""

import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from harness.device.protocol import StepTicket
from harness.train.loop import StepListener
from harness.train.readback import LossTicket
from harness.train.timing import Times


@dataclass(slots=True)
class Progress:
    """The newest step: its number, and its times on a clock on which the run started at `zero_ns`."""

    zero_ns: int = 0
    last_step: int = 0
    times_ns: Times = ()
    unobserved_ns: list[int] | None = None
    """While steps go unobserved: when the first of them began, and when each ended."""

    def unobserve(self, ends_ns: list[int] | None) -> None:
        """From now on steps are unobserved and end in `ends_ns`; None: they are observed again."""
        before_ns, self.unobserved_ns = self.unobserved_ns, ends_ns
        if before_ns is not None and self.times_ns and before_ns[-1] > self.times_ns[-1]:
            self.times_ns = tuple(before_ns[-2:])

    @property
    def last_end_ns(self) -> int:
        """When the newest step, observed or not, ended, counted from the run's start; 0 before the first."""
        ends_ns = self.unobserved_ns or self.times_ns
        return ends_ns[-1] - self.zero_ns if ends_ns else 0

    @property
    def last_step_ns(self) -> int:
        """How long it took; 0 before the first step."""
        return self.times_ns[-1] - self.times_ns[0] if self.times_ns else 0


MOST_FAILURES = 5
"""After so many failures in a row a job is given up; fewer may be a passing fault of disk or driver."""


class Guard:
    """Runs what must not break training. What keeps raising is not run again, and `report` hears of it."""

    def __init__(self, report: Callable[[str, str], None]) -> None:
        """`report(name, error)` is told of each thing that was dropped."""
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


class Dispatcher:
    """A StepListener that keeps `progress` and passes each step on to several, dropping those that break."""

    def __init__(self, listeners: dict[str, StepListener], guard: Guard, progress: Progress) -> None:
        self._tell = [(name, listener.step_ended) for name, listener in listeners.items()]
        self._guard = guard
        self._progress = progress

    def step_ended(
        self,
        step: int,
        times_ns: Times,
        ticket: StepTicket | None,
        loss: LossTicket | None,
        samples: int,
        tokens: int | None,
    ) -> None:
        """Pass the step on to every listener that still works."""
        progress = self._progress
        progress.last_step, progress.times_ns = step, times_ns
        for pair in self._tell:
            try:
                pair[1](step, times_ns, ticket, loss, samples, tokens)
            except MemoryError:
                raise  # The run is out of memory, which is its own end and no observer's fault.
            except Exception as error:  # noqa: BLE001  # the fail-open point of the training thread
                self._tell = [other for other in self._tell if other is not pair]
                self._guard.drop(pair[0], error)
