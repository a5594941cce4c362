"""The sampler's thread: runs small jobs at their own periods, off the training thread.

Jobs are due at whole multiples of their pause, so that several run at one wake-up: each wake-up takes CPU
time and, for a moment, the interpreter's lock from training.
"""

import threading
from collections.abc import Callable
from typing import NamedTuple, Self

from harness.closing import Closing
from harness.watch.guard import FailureGuard


class Job(NamedTuple):
    """A function to run every `pause_s()` seconds, and one to run once when the sampler is closed. The guard
    drops and reports one that raises."""

    name: str
    pause_s: Callable[[], float]
    run: Callable[[], None]
    finish: Callable[[], None] | None = None


def every(period_s: float) -> Callable[[], float]:
    """Return a constant pause."""
    return lambda: period_s


class Sampler(Closing):
    """A context manager that runs jobs in its own thread until it is closed."""

    def __init__(
        self,
        jobs: list[Job],
        guard: FailureGuard,
        clock_s: Callable[[], float],
        prepare: Callable[[], None] | None = None,
    ) -> None:
        """`prepare` is called first in the thread."""
        self._jobs = jobs
        self._prepare = prepare
        self._guard = guard
        self._clock_s = clock_s
        self._is_over = False
        # Held until the end: waiting for it takes fewer calls than waiting for an event.
        self._running = threading.Lock()
        self._running.acquire()
        self._thread = threading.Thread(target=self._work, name="stepscope-sampler", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def close(self, timeout_s: float = 5.0) -> None:
        """End the thread; waits at most `timeout_s`. Idempotent."""
        if not self._is_over:
            self._is_over = True
            self._running.release()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _work(self) -> None:
        if self._prepare is not None:
            self._guard.run("sampler", self._prepare)
        due_s = dict.fromkeys(self._jobs, self._clock_s())
        while not self._is_over:
            now_s = self._clock_s()
            for job in self._jobs:
                if due_s[job] <= now_s and not self._is_over:
                    self._guard.run(job.name, job.run)
                    pause_s = job.pause_s()
                    due_s[job] = (now_s // pause_s + 1) * pause_s if pause_s else now_s
            wait_s = max(min(due_s.values()) - self._clock_s(), 0.001)
            self._running.acquire(timeout=wait_s)
        for job in self._jobs:
            if job.finish is not None:
                self._guard.run(job.name, job.finish)
