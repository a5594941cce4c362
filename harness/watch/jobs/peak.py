"""Samples of the CPU's heap within long steps, where the peak is between the ends of two phases."""

from harness.watch.context import RunContext

# Shorter steps are not sampled: the ends of their phases are close together, and a thread that wakes up
# within them takes the interpreter's lock from training.
LONG_NS = 40_000_000

READ_PERIOD_S = 0.02
IDLE_PERIOD_S = 0.25


class PeakWatch:
    """A job of the sampler."""

    def __init__(self, context: RunContext) -> None:
        self._context = context

    def sample(self) -> None:
        """Sample the heap if the current step is a long one."""
        if self._is_long():
            self._context.device.sample_peak()

    def pause_s(self) -> float:
        """Return the seconds until the next sample."""
        return READ_PERIOD_S if self._is_long() else IDLE_PERIOD_S

    def _is_long(self) -> bool:
        progress = self._context.progress
        if progress.unobserved_ns is not None:
            return False
        return max(progress.last_step_ns, self._context.clock_ns() - progress.last_end_ns) >= LONG_NS
