"""Dispatch of finished steps to listeners; training continues when one of them fails.

A failed listener is dropped, its traceback goes to the run's output, and the page shows a warning.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from harness.device.protocol import StepTicket
from harness.watch.context import Progress
from harness.watch.guard import FailureGuard
from harness.watch.readback import LossTicket
from harness.watch.timing import Times

# See `StepListener.step_ended`.
StepEnded = Callable[[int, Times, StepTicket | None, LossTicket | None, int, int | None], None]


class StepListener(Protocol):
    """Receives every step, on the training thread."""

    def step_ended(
        self,
        step: int,
        times_ns: Times,
        ticket: StepTicket | None,
        loss: LossTicket | None,
        samples: int,
        tokens: int | None,
    ) -> None:
        """Handle the end of a step (on an asynchronous device: of its issue). The tickets resolve later."""
        ...


class Dispatcher:
    """A StepListener that updates `progress`, passes each step to several listeners, and drops failing ones.
    Of unobserved steps it records only the end, and sums up their samples and tokens."""

    def __init__(
        self, listeners: Mapping[str, StepListener], guard: FailureGuard, progress: Progress
    ) -> None:
        self._listeners = [(name, listener.step_ended) for name, listener in listeners.items()]
        self._guard = guard
        self._progress = progress

    @property
    def names(self) -> list[str]:
        """The names of the remaining listeners."""
        return [name for name, _ in self._listeners]

    def step_ended(
        self,
        step: int,
        times_ns: Times,
        ticket: StepTicket | None,
        loss: LossTicket | None,
        samples: int,
        tokens: int | None,
    ) -> None:
        """Pass the step to every remaining listener."""
        progress = self._progress
        if progress.unobserved_ns is not None:
            progress.unobserved_ns.append(times_ns[-1])
            progress.unobserved_samples += samples
            progress.unobserved_tokens += tokens or 0
            return
        progress.last_step, progress.times_ns = step, times_ns
        for pair in self._listeners:
            try:
                pair[1](step, times_ns, ticket, loss, samples, tokens)
            except MemoryError:
                raise  # The run is out of memory, which has its own handler.
            except Exception as error:  # noqa: BLE001  # the fail-open point of the training thread
                self._listeners = [other for other in self._listeners if other is not pair]
                self._guard.drop(pair[0], error)
