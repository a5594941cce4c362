"""Times the phases of a step on the CPU's clock and, where there is one, on the device's own.

What runs in a step is kept to single calls into C where it can be: after a step of training the processor's
caches hold nothing of ours, and every line of Python here costs some ten times what it costs in a tight loop.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from harness.device.protocol import DeviceClock, StepTicket
from harness.records import Phase
from harness.train.memory import MemoryWatch

Times = tuple[int, ...]
"""One step on the CPU's clock, in nanoseconds: the end of the step before, this one's start, the ends of its
phases (in the order of `Phase`, all but the last once a micro-batch), its end.

Steps are chained: a step lasts from the end of the one before to its own, so that steps add up to wall time
and what lies between two steps is part of the later one's residual.
"""

_LAPS_EACH = len(Phase) - 1


def phases_ns(times_ns: Times) -> Sequence[int]:
    """How long each phase took, in the order of `Phase`, those of all micro-batches together."""
    if len(times_ns) == len(Phase) + 3:
        _, start, data_wait, h2d, forward, backward, optimizer, _ = times_ns
        return data_wait - start, h2d - data_wait, forward - h2d, backward - forward, optimizer - backward
    *laps_ns, optimizer_ns = (end - start for start, end in pairwise(times_ns[1:-1]))
    return [*(sum(laps_ns[phase::_LAPS_EACH]) for phase in range(_LAPS_EACH)), optimizer_ns]


class StepTimer:
    """A stopwatch: tell it what ended. It never waits for a device.

    The device's clock starts when the step's first batch has arrived, so that its gap between two steps shows
    how long it stood waiting.

    Attributes:
        begin: starts a step.
        end_data_wait, end_h2d, end_forward, end_backward, end_optimizer: each ends a phase.
        end_step: ends the step: its times, and the ticket for those of the device (None: it has no clock, or
            its ring of events was full).
    """

    begin: Callable[[], None]
    end_data_wait: Callable[[], None]
    end_h2d: Callable[[], None]
    end_forward: Callable[[], None]
    end_backward: Callable[[], None]
    end_optimizer: Callable[[], None]
    end_step: Callable[[], tuple[Times, StepTicket | None]]

    def __init__(
        self,
        clock_ns: Callable[[], int],
        device_clock: DeviceClock | None = None,
        memory: MemoryWatch | None = None,
    ) -> None:
        """`memory` is told when phases end that can end on the step's peak; None where the device finds its
        peak itself."""
        self._clock_ns = clock_ns
        self._device_clock = device_clock
        self._memory = memory
        self._times_ns = [clock_ns()]
        self._mark = map(self._times_ns.append, iter(clock_ns, None)).__next__
        self.begin = self.end_data_wait = self.end_h2d = self._mark
        self.end_forward = self.end_backward = self.end_optimizer = self._mark
        self.end_step = partial(_end_step, self._mark, self._times_ns)
        if device_clock is not None:
            self._time_device(device_clock)
        if memory is not None:
            memory.tell(self._look)

    def restart(self) -> None:
        """Begin the chain anew: what happened since the last step (a pause, a rebuilt loader) is nobody's."""
        self._times_ns[:] = [self._clock_ns()]
        if self._device_clock is not None:
            self._device_clock.restart()

    @property
    def laps(self) -> int:
        """How many phases of the step under way have ended, those of each micro-batch counted."""
        return len(self._times_ns) - 2

    def _look(self, looking: bool) -> None:
        """From now on look for peaks at the ends of phases, or no more: activations peak at the end of the
        forward pass, gradients at that of the backward pass."""
        self.end_forward = self.end_backward = self._mark_and_look if looking else self._mark

    def _mark_and_look(self) -> None:
        self._mark()
        assert self._memory is not None
        self._memory.note_peak()

    def _time_device(self, clock: DeviceClock) -> None:
        mark = self._mark
        is_begun = False

        def begin() -> None:
            nonlocal is_begun
            is_begun = False
            mark()

        def end_data_wait() -> None:
            nonlocal is_begun
            mark()
            if is_begun:
                clock.lap(Phase.DATA_WAIT)
            else:
                is_begun = True
                clock.begin()

        def end_step() -> tuple[Times, StepTicket | None]:
            ticket = clock.end()
            return _end_step(mark, self._times_ns)[0], ticket

        def end(phase: Phase) -> Callable[[], None]:
            def end_phase() -> None:
                mark()
                clock.lap(phase)

            return end_phase

        self.begin, self.end_data_wait, self.end_h2d = begin, end_data_wait, end(Phase.H2D)
        self.end_forward, self.end_backward = end(Phase.FORWARD), end(Phase.BACKWARD)
        self.end_optimizer, self.end_step = end(Phase.OPTIMIZER), end_step


def _end_step(mark: Callable[[], None], times_ns: list[int]) -> tuple[Times, None]:
    """Close the list of times; its last stays as the next step's first."""
    mark()
    step = tuple(times_ns)
    del times_ns[:-1]
    return step, None
