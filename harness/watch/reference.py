"""Timing of a fixed piece of work between two steps: the speed of the machine itself.

Steps on the CPU get slower when another process, or another machine on the same host, uses the same core: by
half on simultaneous multithreading. The same work right after a step slows down with it, so that their ratio
separates a change of the step from one of the machine (`harness.analysis.effect.reference`).
"""

import time

from harness.records.reference import ReferenceRow
from harness.watch.boundary import Boundary, StepAction
from harness.watch.context import RunContext
from harness.watch.memory import MemoryWatch

# Between two measurements.
PERIOD_NS = 40_000_000
# Some 4 us of the interpreter and some 10 us of copying through the caches.
_ROUNDS = 150
_COPIED_BYTES = 256 * 1024


class ReferenceWork(StepAction):
    """Runs the reference work after a step of a CPU training, 25 times per second at most.

    Where short steps share a reading of the memory, it runs before the step that is read: such steps take
    longer anyway, and more of them would cost more than the work itself.
    """

    only_measures = True

    def __init__(self, context: RunContext, memory: MemoryWatch) -> None:
        self._context = context
        self._memory = memory
        self._due_ns = 0
        self._source = bytes(_COPIED_BYTES)
        self._target = bytearray(_COPIED_BYTES)

    @property
    def deadline_ns(self) -> int | None:
        """The moment of the next measurement, on the run's clock."""
        progress = self._context.progress
        return max(self._due_ns, self._memory.due_ns - progress.last_step_ns - progress.zero_ns)

    def before_step(self, boundary: Boundary) -> None:
        """Run the work if it is due, and record it with the step that has just ended."""
        now_ns, step = self._context.clock_ns(), boundary.step - 1
        if now_ns < self._due_ns or step < 1:
            return
        # Due again even if nothing is measured: actions run before each step while they are due.
        self._due_ns = now_ns + PERIOD_NS
        if self._context.last_step != step:  # An unobserved step.
            return
        self._context.journal.put(ReferenceRow(step, self._run()))

    def _run(self) -> int:
        """Do the work; return its duration."""
        began_ns = time.perf_counter_ns()
        total = 0
        for number in range(_ROUNDS):
            total += number
        self._target[:] = self._source
        return time.perf_counter_ns() - began_ns
