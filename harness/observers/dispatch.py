"""Tells observers what happens in a run, and keeps training alive when one of them breaks.

This is the one place in the training process that catches everything: a broken observer is dropped, its
traceback goes to the run's output, and a warning says so on the page. Training goes on.
"""

import traceback
from collections.abc import Callable
from dataclasses import dataclass

from harness.train.loop import StepListener
from harness.train.readback import LossTicket
from harness.train.timing import StepTiming


@dataclass(slots=True)
class Progress:
    """The newest step, when it ended (counted from the run's start) and how long it took."""

    last_step: int = 0
    last_end_ns: int = 0
    last_step_ns: int = 0


class Guard:
    """Runs what must not break training. What raises once is not run again, and `report` hears of it."""

    def __init__(self, report: Callable[[str, str], None]) -> None:
        """`report(name, error)` is told of each thing that was dropped."""
        self._report = report
        self._dropped: set[str] = set()

    def run(self, name: str, function: Callable[[], None]) -> bool:
        """Call `function` unless `name` was dropped before; whether it ran to its end."""
        if name in self._dropped:
            return False
        try:
            function()
        except Exception as error:  # noqa: BLE001  # the fail-open point of the sampler's threads
            self.drop(name, error)
            return False
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
        self, step: int, timing: StepTiming, loss: LossTicket | None, samples: int, tokens: int | None
    ) -> None:
        """Pass the step on to every listener that still works."""
        progress = self._progress
        progress.last_step, progress.last_end_ns, progress.last_step_ns = step, timing.end_ns, timing.step_ns
        for pair in self._tell:
            try:
                pair[1](step, timing, loss, samples, tokens)
            except Exception as error:  # noqa: BLE001  # the fail-open point of the training thread
                self._tell = [other for other in self._tell if other is not pair]
                self._guard.drop(pair[0], error)
