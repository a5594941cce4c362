"""Times the phases of a step on the CPU's clock and, where there is one, on the device's own."""

from collections.abc import Callable
from typing import NamedTuple

from harness.device.protocol import DeviceClock, StepTicket
from harness.records import Phase

_NO_LAPS = dict.fromkeys(Phase, 0)
_PEAKS = frozenset({Phase.FORWARD, Phase.BACKWARD})
"""The phases at whose ends memory peaks: activations at the first's, gradients at the second's."""


class StepTiming(NamedTuple):
    """One step on the CPU's clock, in nanoseconds, and the ticket for its device times. `end_ns` counts from
    the run's start.

    `phases_ns` follows the order of `Phase`. Steps are chained: a step starts where the one before ended, so
    that steps add up to wall time and what lies between two steps is part of the later one's residual.
    """

    end_ns: int
    step_ns: int
    phases_ns: tuple[int, ...]
    ticket: StepTicket | None
    untimed: bool
    """Whether the device's ring of events was full."""


class StepTimer:
    """A stopwatch with laps. Costs about 0.2 µs a lap on the CPU path and never waits for a device.

    The device's clock starts when the step's first batch has arrived, so that its gap between two steps shows
    how long it stood waiting.
    """

    def __init__(
        self,
        clock_ns: Callable[[], int],
        zero_ns: int,
        device_clock: DeviceClock | None,
        note_peak: Callable[[int], None] | None,
    ) -> None:
        """`zero_ns` is the run's start on `clock_ns`, from which `StepTiming.end_ns` counts; `note_peak` is
        called, with the time since the run's start, after every lap that can end on the step's peak; None
        where not needed."""
        self._clock_ns = clock_ns
        self._zero_ns = zero_ns
        self._device_clock = device_clock
        self._note_peak = note_peak
        self._laps_ns = _NO_LAPS.copy()
        self._is_begun = False
        self._mark_ns = self._last_end_ns = clock_ns()

    def restart(self) -> None:
        """Begin the chain anew: what happened since the last step (a pause, a rebuilt loader) is nobody's."""
        self._last_end_ns = self._clock_ns()
        if self._device_clock is not None:
            self._device_clock.restart()

    def begin(self) -> None:
        """Start a step."""
        self._laps_ns = _NO_LAPS.copy()
        self._is_begun = False
        self._mark_ns = self._clock_ns()

    def lap(self, phase: Phase) -> None:
        """End a phase; laps of the same phase within a step add up."""
        now_ns = self._clock_ns()
        self._laps_ns[phase] += now_ns - self._mark_ns
        self._mark_ns = now_ns
        if self._device_clock is not None:
            self._mark_device(self._device_clock, phase)
        if self._note_peak is not None and phase in _PEAKS:
            self._note_peak(now_ns - self._zero_ns)

    def _mark_device(self, clock: DeviceClock, phase: Phase) -> None:
        if self._is_begun:
            clock.lap(phase)
        else:
            self._is_begun = True
            clock.begin()

    def end(self) -> StepTiming:
        """End the step."""
        ticket = None if self._device_clock is None else self._device_clock.end()
        end_ns = self._clock_ns()
        last_end_ns, self._last_end_ns = self._last_end_ns, end_ns
        return StepTiming(
            end_ns - self._zero_ns,
            end_ns - last_end_ns,
            tuple(self._laps_ns.values()),
            ticket,
            self._device_clock is not None and ticket is None,
        )
