"""Timing of a fixed piece of work between two steps: the speed of the machine itself.

Steps on the CPU get slower when another process, or another machine on the same host, uses the same core: by
half on simultaneous multithreading. The same work right after a step slows down with it, so that their ratio
separates a change of the step from one of the machine (`harness.analysis.effect.reference`).
"""

import time
from collections.abc import Callable

from harness.records.reference import ReferenceRow

# Between two measurements.
PERIOD_NS = 40_000_000
# Some 4 us of the interpreter and some 10 us of copying through the caches.
_ROUNDS = 150
_COPIED_BYTES = 256 * 1024


class ReferenceWork:
    """The reference work after a step of a CPU training, 25 times per second at most.

    Attributes:
        due_ns: the time of the next measurement, on the clock of the ends of steps.
    """

    def __init__(self, put: Callable[[ReferenceRow], None]) -> None:
        """`put` records a measurement."""
        self._put = put
        self.due_ns = 0
        self._source = bytes(_COPIED_BYTES)
        self._target = bytearray(_COPIED_BYTES)

    def step_ended(self, step: int, end_ns: int) -> None:
        """Do the work, and record it with `step`, which ended at `end_ns`."""
        self.due_ns = end_ns + PERIOD_NS
        began_ns = time.perf_counter_ns()
        total = 0
        for number in range(_ROUNDS):
            total += number
        self._target[:] = self._source
        self._put(ReferenceRow(step, time.perf_counter_ns() - began_ns))
