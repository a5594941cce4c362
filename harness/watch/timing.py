"""Times the phases of a step on the CPU's clock and, where there is one, on the device's own.

What runs in a step is kept to few calls into C: after a step of training the processor's caches hold nothing
of ours, and every line here costs some ten times what it costs in a tight loop.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise, repeat

from torch import Tensor

from harness.device.protocol import DeviceClock, StepTicket
from harness.records.run import Phase
from harness.watch.memory import MemoryWatch
from harness.watch.readback import LossReader, LossTicket

# One step on the CPU's clock, in nanoseconds: the end of the step before, this one's start, the ends of its
# phases (in the order of `Phase`, all but the last once a micro-batch), its end. Steps are chained: a step
# lasts from the end of the one before to its own, so that steps add up to wall time and what lies between two
# steps is part of the later one's residual.
Times = tuple[int, ...]

# As short as the clock's own call, so that a step does the same whether it is observed or not.
_no_time: Callable[[], int] = repeat(0).__next__

_LAPS_EACH = len(Phase) - 1


def phases_ns(times_ns: Times) -> Sequence[int]:
    """Return the duration of each phase, in the order of `Phase`, summed over micro-batches."""
    if len(times_ns) == len(Phase) + 3:
        _, start, data_wait, h2d, forward, backward, optimizer, _ = times_ns
        return data_wait - start, h2d - data_wait, forward - h2d, backward - forward, optimizer - backward
    *laps_ns, optimizer_ns = (end - start for start, end in pairwise(times_ns[1:-1]))
    return [*(sum(laps_ns[phase::_LAPS_EACH]) for phase in range(_LAPS_EACH)), optimizer_ns]


class StepTimer:
    """A stopwatch for steps, which note by themselves when their phases end. It never waits for a device.

    The device's clock starts when the step's first batch has arrived, so that its gap between two steps shows
    how long it stood waiting.

    Attributes:
        now: the CPU's clock, for the ends of phases; while steps go unobserved it tells no time.
        clock_ns: the CPU's clock.
        end_ns: when the step before ended, put here as it ends; the next one begins there.
        losses: brings losses back from the device.
        take_loss: takes a loss along, see `LossReader.take`.
        end_device: ends a step on the device's clock, just before: the ticket for its times there, None when
            the ring of events was full; itself None without such a clock.
        laps: how many phases of a failed step had ended, those of each micro-batch counted.
        is_observing: False while steps go unobserved: nothing is noted of them but their end.
        lap: called with the phase that ended, when something is to be done at such a moment; None in most
            steps on the CPU. With a device clock it leaves a mark there; on the CPU it looks for the peak.
    """

    now: Callable[[], int]
    take_loss: Callable[[Tensor], LossTicket | None]
    end_device: Callable[[], StepTicket | None] | None
    lap: Callable[[Phase], None] | None

    def __init__(
        self,
        clock_ns: Callable[[], int],
        device_clock: DeviceClock | None = None,
        memory: MemoryWatch | None = None,
        losses: LossReader | None = None,
    ) -> None:
        """`memory` is told when phases end that can end on the step's peak; None where the device finds its
        peak itself. `losses` are by default those of a synchronous device."""
        self.clock_ns = clock_ns
        self.end_ns = clock_ns()
        self.laps = 0
        self.losses = losses or LossReader(None)
        self._device_clock = device_clock
        self._has_begun = False
        self._lap_of_step: Callable[[Phase], None] | None = None
        if device_clock is not None:
            self._lap_of_step = partial(self._lap, device_clock)
        self._observe()
        if device_clock is None and memory is not None:
            note_peak = partial(_note_peak, memory.note_peak)
            memory.subscribe(lambda is_sampled: self._set_lap(note_peak if is_sampled else None))

    def restart(self) -> None:
        """Begin the chain anew: what happened since the last step (a pause, a rebuilt loader) is nobody's.
        From here on steps are observed."""
        self._observe()
        self._has_begun = False
        self.end_ns = self.clock_ns()
        if self._device_clock is not None:
            self._device_clock.restart()

    def unobserve(self) -> None:
        """From the next step on nothing is noted but when it ends, until `restart`."""
        self.is_observing = False
        self.now, self.take_loss, self.lap, self.end_device = _no_time, _no_loss, None, None

    def _observe(self) -> None:
        self.is_observing = True
        self.now, self.take_loss, self.lap = self.clock_ns, self.losses.take, self._lap_of_step
        self.end_device = None if self._device_clock is None else partial(self._end, self._device_clock)

    def _set_lap(self, lap: Callable[[Phase], None] | None) -> None:
        self._lap_of_step = lap
        if self.is_observing:
            self.lap = lap

    def _lap(self, clock: DeviceClock, phase: Phase) -> None:
        if self._has_begun:
            clock.lap(phase)
        else:
            self._has_begun = True
            clock.begin()

    def _end(self, clock: DeviceClock) -> StepTicket | None:
        self._has_begun = False
        return clock.end()


def _no_loss(_loss: Tensor) -> LossTicket | None:
    return None


def _note_peak(note_peak: Callable[[], None], phase: Phase) -> None:
    """Activations peak at the end of the forward pass, gradients at that of the backward pass."""
    if phase is Phase.FORWARD or phase is Phase.BACKWARD:
        note_peak()
