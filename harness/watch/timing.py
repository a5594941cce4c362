"""Times of the phases of a step on the CPU's clock and, where there is one, on the device's own.

Within a step there are few calls into C: after a step of training the processor's caches contain nothing of
this code, and every line takes some ten times as long as in a tight loop.
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
#
# Or the nine times of a step whose phases were measured each on its own: the end of the step before, then
# begin and end of the data wait, of the model's call, of the backward pass and of the optimizer's step, with
# which the step ends. Its forward phase lasts from the model's call to the backward pass.
Times = tuple[int, ...]

# As short as the clock's own call, so that a step does the same whether it is observed or not.
_no_time: Callable[[], int] = repeat(0).__next__

_LAPS_EACH = len(Phase) - 1
_CHAINED, _SEPARATE = len(Phase) + 3, 9


def phases_ns(times_ns: Times) -> Sequence[int]:
    """Return the duration of each phase, in the order of `Phase`, summed over micro-batches."""
    if len(times_ns) == _SEPARATE:
        _, requested, arrived, called, _, gradients, computed, updating, end = times_ns
        return arrived - requested, 0, gradients - called, computed - gradients, end - updating
    if len(times_ns) == _CHAINED:
        _, start, data_wait, h2d, forward, backward, optimizer, _ = times_ns
        return data_wait - start, h2d - data_wait, forward - h2d, backward - forward, optimizer - backward
    *laps_ns, optimizer_ns = (end - start for start, end in pairwise(times_ns[1:-1]))
    return [*(sum(laps_ns[phase::_LAPS_EACH]) for phase in range(_LAPS_EACH)), optimizer_ns]


class StepTimer:
    """A stopwatch for steps. It never waits for a device.

    The device's clock starts after the step's first batch has arrived, so that its gap between two steps is
    idle time.

    Attributes:
        now: the CPU's clock, for the ends of phases; returns 0 in unobserved steps.
        clock_ns: the CPU's clock.
        end_ns: the end of the previous step, set at its end; the next one begins there.
        losses: transfers losses from the device.
        take_loss: records a loss, see `LossReader.take`.
        end_device: ends a step on the device's clock, as `DeviceClock.end`; None without such a clock.
        laps: the number of finished phases of a failed step, over its micro-batches.
        is_observing: False in unobserved steps: only their end is recorded.
        lap: called with each finished phase; None in most steps on the CPU. It records a device event, or
            measures the peak on the CPU.
    """

    now: Callable[[], int]
    take_loss: Callable[[Tensor], LossTicket | None]
    end_device: Callable[..., StepTicket | None] | None
    lap: Callable[[Phase], None] | None

    def __init__(
        self,
        clock_ns: Callable[[], int],
        device_clock: DeviceClock | None = None,
        memory: MemoryWatch | None = None,
        losses: LossReader | None = None,
    ) -> None:
        """`memory` measures the peak at the ends of phases; None if the device tracks its peak itself.
        `losses` are by default those of a synchronous device."""
        self.clock_ns = clock_ns
        self.end_ns = clock_ns()
        self.laps = 0
        self.losses = losses or LossReader(None)
        self._device_clock = device_clock
        self._has_begun = False
        self._unobserved_ns: list[int] = []
        self._lap_of_step: Callable[[Phase], None] | None = None
        if device_clock is not None:
            self._lap_of_step = partial(self._lap, device_clock)
        self._observe()
        if device_clock is None and memory is not None:
            note_peak = partial(_note_peak, memory.note_peak)
            memory.subscribe(lambda is_sampled: self._set_lap(note_peak if is_sampled else None))

    def restart(self) -> None:
        """Begin the chain anew: time since the last step (a pause, a rebuilt loader) belongs to no step.
        Steps are observed from here on."""
        self._observe()
        self._has_begun = False
        self.end_ns = self.clock_ns()
        if self._device_clock is not None:
            self._device_clock.restart()

    def leave_out(self) -> int:
        """Begin the chain anew, as `restart` does, but go on with an unobserved block: none of its steps has
        the time since the last step. Return that time."""
        began_ns = self.end_ns
        if self.is_observing:
            self.restart()
            return self.end_ns - began_ns
        self.end_ns = self.clock_ns()
        duration_ns, ends_ns = self.end_ns - began_ns, self._unobserved_ns
        ends_ns[:] = [end_ns + duration_ns for end_ns in ends_ns]
        return duration_ns

    def leave_out_since(self, began_ns: int) -> int:
        """Leave the time since `began_ns` out of the step under way, which goes on without device times;
        return that time."""
        self.leave_device_out()
        duration_ns = self.clock_ns() - began_ns
        self.end_ns += duration_ns
        if not self.is_observing:
            self._unobserved_ns[:] = [end_ns + duration_ns for end_ns in self._unobserved_ns]
        return duration_ns

    def leave_device_out(self) -> None:
        """Leave the step under way without device times: work of no step is among its marks."""
        if self._device_clock is not None:
            self._device_clock.leave_untimed()

    def unobserve(self, ends_ns: list[int] | None = None) -> None:
        """Record only the ends of steps, from the next one until `restart`; `ends_ns` are those of the
        block."""
        self.is_observing = False
        self._unobserved_ns = [] if ends_ns is None else ends_ns
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
            return
        self._has_begun = True
        if phase not in (Phase.DATA_WAIT, Phase.H2D):  # Work of the step has been issued: no idle time.
            clock.restart()
        clock.begin()

    def _end(self, clock: DeviceClock, *, is_late: bool = False) -> StepTicket | None:
        self._has_begun = False
        return clock.end(is_late=is_late)


def _no_loss(_loss: Tensor) -> LossTicket | None:
    return None


def _note_peak(note_peak: Callable[[], None], phase: Phase) -> None:
    """Activations peak at the end of the forward pass, gradients at that of the backward pass."""
    if phase is Phase.FORWARD or phase is Phase.BACKWARD:
        note_peak()
