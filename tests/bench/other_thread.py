"""The cost of Python code in another thread for training, which waits for the interpreter's lock."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from torch import nn

from harness.watch.guard import FailureGuard
from harness.watch.jobs.sampler import Job, Sampler, every

PERIOD_S, WORK_NS = 0.05, 1_000_000
"""The thread computes for so long, so often: 2 % of the time."""
_PAUSE_NS = 20_000_000
"""After so long without steps a block of them is over, and the thread rests."""
_ROUNDS = 50


class OtherThread:
    """A `StepLog` that records nothing. While it receives steps, `compute` holds the lock."""

    def __init__(self) -> None:
        self._stepped_ns = 0

    def step(self, model: nn.Module) -> AbstractContextManager[object] | None:
        """Nothing is entered around a step."""
        del model
        self._stepped_ns = time.perf_counter_ns()
        return None

    def log(self, step: int, values: dict[str, float]) -> None:
        """Nothing is recorded."""

    def compute(self) -> None:
        """Compute in Python until the calling thread has used so much processor time."""
        if time.perf_counter_ns() - self._stepped_ns >= _PAUSE_NS:
            return
        end_ns = time.thread_time_ns() + WORK_NS
        while time.thread_time_ns() < end_ns:
            for _ in range(_ROUNDS):
                pass


@contextmanager
def beside_other_thread() -> Iterator[OtherThread]:
    """Let another thread compute now and then until the context ends."""
    log = OtherThread()

    def failed(name: str, error: str) -> None:
        raise RuntimeError(f"{name}: {error}")

    with Sampler([Job("Python", every(PERIOD_S), log.compute)], FailureGuard(failed), time.monotonic):
        yield log
