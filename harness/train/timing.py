"""Times the phases of a step on the CPU's clock and, where there is one, on the device's own."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from harness.device.protocol import DeviceClock, StepTicket
from harness.records import Phase
from harness.train.memory import MemoryWatch

_PHASES = tuple(Phase)
_EACH_MICRO_BATCH = len(_PHASES) - 1
_PEAKS = frozenset({Phase.FORWARD, Phase.BACKWARD})
"""The phases at whose ends memory peaks: activations at the first's, gradients at the second's."""


class StepTiming(NamedTuple):
    """One step on the CPU's clock, in nanoseconds, and the ticket for its device times. `end_ns` counts from
    the run's start.

    `marks_ns` are the step's start and the ends of its phases, in the order of `Phase`, all but the last
    phase once a micro-batch. Steps are chained: a step starts where the one before ended, so that steps add
    up to wall time and what lies between two steps is part of the later one's residual.
    """

    end_ns: int
    step_ns: int
    marks_ns: list[int]
    ticket: StepTicket | None
    untimed: bool
    """Whether the device's ring of events was full."""


_new_timing: Callable[[tuple[Any, ...]], StepTiming] = partial(tuple.__new__, StepTiming)
"""As StepTiming, at a quarter of the cost: one a step is made, on the training thread."""


def phases_ns(marks_ns: list[int]) -> tuple[int, ...]:
    """How long each phase took, those of all micro-batches together."""
    if len(marks_ns) == len(_PHASES) + 1:
        start, data_wait, h2d, forward, backward, optimizer = marks_ns
        return data_wait - start, h2d - data_wait, forward - h2d, backward - forward, optimizer - backward
    ends_ns = marks_ns[1:]
    laps_ns = [end - start for start, end in zip(marks_ns, ends_ns, strict=False)]
    last_ns = laps_ns.pop()
    return (*(sum(laps_ns[i::_EACH_MICRO_BATCH]) for i in range(_EACH_MICRO_BATCH)), last_ns)


class StepTimer:
    """A stopwatch with laps. Costs about 0.1 µs a lap on the CPU path and never waits for a device.

    The device's clock starts when the step's first batch has arrived, so that its gap between two steps shows
    how long it stood waiting.

    Attributes:
        lap: ends a phase. Phases come in the order of `Phase`, all but the last once a micro-batch.
    """

    lap: Callable[[Phase], None]

    def __init__(
        self,
        clock_ns: Callable[[], int],
        zero_ns: int,
        device_clock: DeviceClock | None = None,
        memory: MemoryWatch | None = None,
    ) -> None:
        """`zero_ns` is the run's start on `clock_ns`, from which `StepTiming.end_ns` counts; `memory` is told
        of the phases that can end on the step's peak, None where the device finds its peak itself."""
        self._clock_ns = clock_ns
        self._zero_ns = zero_ns
        self._device_clock = device_clock
        self._memory = memory
        self._plain_lap = self._mark if device_clock is None else self._mark_both
        self._looking_lap = self._mark_and_look
        self.lap = self._plain_lap
        self._is_begun = False
        self._marks_ns: list[int] = []
        self._last_end_ns = clock_ns()

    def restart(self) -> None:
        """Begin the chain anew: what happened since the last step (a pause, a rebuilt loader) is nobody's."""
        self._last_end_ns = self._clock_ns()
        if self._device_clock is not None:
            self._device_clock.restart()

    def begin(self) -> None:
        """Start a step."""
        if self._memory is not None:
            self.lap = self._looking_lap if self._memory.looking else self._plain_lap
        self._is_begun = False
        self._marks_ns = [self._clock_ns()]

    def _mark(self, _phase: Phase) -> None:
        self._marks_ns.append(self._clock_ns())

    def _mark_and_look(self, phase: Phase) -> None:
        self._plain_lap(phase)
        if self._memory is not None and phase in _PEAKS:
            self._memory.note_peak()

    def _mark_both(self, phase: Phase) -> None:
        self._marks_ns.append(self._clock_ns())
        assert self._device_clock is not None
        if self._is_begun:
            self._device_clock.lap(phase)
        else:
            self._is_begun = True
            self._device_clock.begin()

    def end(self) -> StepTiming:
        """End the step."""
        clock = self._device_clock
        ticket = None if clock is None else clock.end()
        end_ns = self._clock_ns()
        step_ns = end_ns - self._last_end_ns
        self._last_end_ns = end_ns
        untimed = clock is not None and ticket is None
        return _new_timing((end_ns - self._zero_ns, step_ns, self._marks_ns, ticket, untimed))
