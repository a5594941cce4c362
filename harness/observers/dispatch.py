"""Tells observers what happens in a run, and keeps training alive when one of them breaks.

This is the one place in the training process that catches everything: a broken observer is dropped, its
traceback goes to the run's output, and a warning says so on the page. Training goes on.
"""

import traceback
from collections.abc import Callable
from typing import ParamSpec

from harness.train.loop import StepListener
from harness.train.readback import LossTicket
from harness.train.timing import StepTiming

Args = ParamSpec("Args")


class Guard:
    """Runs what must not break training. What raises once is not run again, and `report` hears of it."""

    def __init__(self, report: Callable[[str, str], None]) -> None:
        """`report(name, error)` is told of each thing that was dropped."""
        self._report = report
        self._dropped: set[str] = set()

    def run(self, name: str, function: Callable[Args, None], *args: Args.args, **kwargs: Args.kwargs) -> bool:
        """Call `function` unless `name` was dropped before; whether it ran to its end."""
        if name in self._dropped:
            return False
        try:
            function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  # the single fail-open point of the process
            self._dropped.add(name)
            traceback.print_exc()
            self._report(name, f"{type(error).__name__}: {error}")
            return False
        return True


class Dispatcher:
    """A StepListener that passes each step on to several, dropping those that break."""

    def __init__(self, listeners: dict[str, StepListener], guard: Guard) -> None:
        self._listeners = listeners
        self._guard = guard

    def step_ended(
        self, step: int, timing: StepTiming, loss: LossTicket | None, samples: int, tokens: int | None
    ) -> None:
        """Pass the step on to every listener that still works."""
        for name, listener in self._listeners.items():
            self._guard.run(name, listener.step_ended, step, timing, loss, samples, tokens)
