"""What Python code in another thread costs training: whoever holds the interpreter's lock makes it wait."""

import threading
import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from torch import nn

PERIOD_S, WORK_NS = 0.05, 1_000_000
"""The thread computes for so long, so often: 2 % of the time."""
_PAUSE_NS = 20_000_000
"""Without a step for so long the block of steps is over, and the thread rests."""
_ROUNDS = 50


class OtherThread:
    """A `StepLog` that records nothing, with a thread that holds the lock now and then. A context manager."""

    def __init__(self) -> None:
        self._stepped_ns = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def step(self, model: nn.Module) -> AbstractContextManager[object] | None:
        """Nothing is entered around a step."""
        del model
        self._stepped_ns = time.perf_counter_ns()
        return None

    def log(self, step: int, values: dict[str, float]) -> None:
        """Nothing is recorded."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._over.wait(PERIOD_S):
            if time.perf_counter_ns() - self._stepped_ns < _PAUSE_NS:
                compute_for(WORK_NS)


def compute_for(work_ns: int) -> None:
    """Compute in Python until the calling thread has used so much processor time."""
    end_ns = time.thread_time_ns() + work_ns
    while time.thread_time_ns() < end_ns:
        for _ in range(_ROUNDS):
            pass
