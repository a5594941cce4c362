"""Samples of the CPU's heap within long steps, where the peak is between the ends of two phases."""

import time

from harness.watch.context import RunContext
from harness.watch.memory import MOST_SHARE, MemoryWatch

# Shorter steps are not sampled: the ends of their phases are close together, and a thread that wakes up
# within them takes the interpreter's lock from training.
LONG_NS = 40_000_000

READ_PERIOD_S = 0.02
IDLE_PERIOD_S = 0.25


class PeakWatch:
    """A job of the sampler."""

    def __init__(self, context: RunContext, memory: MemoryWatch) -> None:
        self._context = context
        self._memory = memory
        self._duration_s = 0.0

    def sample(self) -> None:
        """Sample the heap if the current step is a long one, and one that is read at its end."""
        if self._is_long() and self._memory.is_sampled:
            began_s = time.thread_time()
            self._context.device.sample_peak()
            self._duration_s = time.thread_time() - began_s

    def pause_s(self) -> float:
        """Return the seconds until the next sample."""
        return max(READ_PERIOD_S, self._duration_s / MOST_SHARE) if self._is_long() else IDLE_PERIOD_S

    def _is_long(self) -> bool:
        progress = self._context.progress
        if progress.unobserved_ns is not None:
            return False
        return max(progress.last_step_ns, self._context.clock_ns() - progress.last_end_ns) >= LONG_NS
