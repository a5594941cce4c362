"""A simulated GPU that trains a GPT-2-small-sized transformer: settings in, step rows out.

The numbers follow a few rules of thumb, so that a change of settings has a realistic effect: weights,
gradients and Adam's state take 16 bytes per parameter, activations grow with the batch and shrink under AMP,
reserved memory stays at its maximum until the cache is emptied.
"""

from itertools import repeat
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from harness.records.flops import FlopsRow
from harness.records.run import AmpMode, DeviceFacts, DeviceKind, StepFlag, StepRow
from harness.settings import Settings

GIB = 2**30
_MIB = 2**20
PARAMETERS = 86_039_040
# FLOPs of the real model; a test counts them again.
FLOPS = tuple(
    FlopsRow(checkpointing, flops, "[]", 2, "{}", 300_000_000)
    for checkpointing, flops in ((0, 639_010_603_008.0), (1, 793_629_425_664.0))
)
# Memory of CUDA's context and libraries, outside of the allocator.
CONTEXT_BYTES = 612 * _MIB

FACTS = DeviceFacts(
    kind=DeviceKind.CUDA,
    ordinal=0,
    uuid="GPU-00000000-0000-0000-0000-51301a7ed000",
    name="NVIDIA H200 (simulated)",
    memory_bytes=150_754_820_096,
    capability=(9, 0),
    multiprocessors=132,
    power_limit_w=700.0,
    amp_modes=(AmpMode.OFF, AmpMode.BF16, AmpMode.FP16),
    can_pin=True,
    can_trim=True,
    can_cap=True,
    can_compile=True,
)

_STATIC_BYTES = 16 * PARAMETERS
# Of one text of 1,024 bytes in float32.
_ACTIVATION_BYTES = 560 * _MIB
_AMP_MEMORY = 0.62
_AMP_TIME = 0.56
# Of one such text, with TF32.
_FORWARD_NS = 0.68e6
_COPY_NS = 5.5e3
_OPTIMIZER_NS = 2.4e6
_LOADER_NS = 6.4e6
# CPU time to issue a forward and a backward pass of twelve layers, and the optimizer.
_ISSUE_NS = 12e6
# The loop's own work between two steps.
_BETWEEN_NS = 0.1e6
_LEAST_GAP_NS = 2e4
# Share of steps that take 50 % longer, because of Python's garbage collector or other processes.
_SPIKES = 0.004
# Steps flagged after a start or a change.
_FIRST_STEPS = 5
_NANOSECONDS_PER_MS = 1e6

_Floats = npt.NDArray[np.floating]


class Faults(NamedTuple):
    """The faults of the simulated program."""

    leaked_bytes_a_step: float = 0.0
    fragmented_bytes_a_step: float = 0.0


class SimulatedGpu:
    """The simulated GPU with its training process; its state is time, memory and loss."""

    def __init__(self, seed: int, faults: Faults) -> None:
        self._chance = np.random.default_rng(seed)
        self._faults = faults
        self._loss_steps = 0.0
        self._leaked_bytes = 0.0
        self._fragmented_bytes = 0.0
        self._reserved_bytes = 0.0
        self._retries = 0
        self.t_ns = 0

    @property
    def reserved_bytes(self) -> int:
        """Reserved memory."""
        return int(self._reserved_bytes)

    def allocated_bytes(self) -> float:
        """Return allocated memory between two steps."""
        return _STATIC_BYTES + 96 * _MIB + self._leaked_bytes

    def peak_bytes(self, settings: Settings) -> float:
        """Return the peak of a step without noise."""
        share = 1.0 if settings.amp is AmpMode.OFF else _AMP_MEMORY
        if settings.activation_checkpointing:
            share *= 0.3
        return self.allocated_bytes() + settings.batch_size * _ACTIVATION_BYTES * share

    def empty_cache(self) -> int:
        """Release unused reserved memory; return its size."""
        remaining = _segments(np.array([self.allocated_bytes() * 1.02]))[0]
        freed = max(0.0, self._reserved_bytes - remaining)
        self._reserved_bytes -= freed
        self._fragmented_bytes = 0.0
        return int(freed)

    def train(
        self, settings: Settings, version: int, first: int, count: int, since_change: int
    ) -> list[StepRow]:
        """Return the steps [first, first + count) under `settings`; `since_change` is the number of steps
        since the last change (or the start, when `version` is 1)."""
        times = self._times(settings, count, since_change)
        settling = np.arange(since_change, since_change + count) < _FIRST_STEPS
        samples = settings.batch_size * settings.grad_accumulation
        rows = zip(
            range(first, first + count),
            *map(_whole, times),
            self._loss(settings, count).tolist(),
            repeat(0, count),
            repeat(samples, count),
            repeat(samples * settings.sequence_length, count),
            *map(_whole, self._memory(settings, count)),
            repeat(0, count),
            _whole(self._chance.normal(4.1 * GIB, 3 * _MIB, count)),
            repeat(version, count),
            _whole(settling * float(StepFlag.TRANSITION if version > 1 else StepFlag.WARM_UP)),
            repeat(None, count),
            repeat(None, count),
            strict=True,
        )
        self.t_ns = int(times[0][-1])
        return [StepRow._make(row) for row in rows]

    def _times(self, settings: Settings, count: int, since_change: int) -> list[_Floats]:
        """Return the columns from `t_ns` to `device_gap_ns`.

        The CPU issues work ahead of the device until the queue is full: then it waits while issuing, and the
        loader's time is hidden. When the loop takes longer than the device's work, the device waits.
        """
        waits, phases = self._device_times(settings, count, since_change)
        h2d, forward, backward, optimizer = phases
        device_step = h2d + forward + backward + optimizer
        issuing = _ISSUE_NS * settings.grad_accumulation * self._noise(count, 0.02)
        gaps = np.maximum(waits + _BETWEEN_NS + issuing - device_step, 0.0) + _LEAST_GAP_NS
        step_ns = device_step + gaps
        issue = (step_ns - waits - _BETWEEN_NS - h2d) / (forward + backward + optimizer)
        cpu = [waits, h2d, forward * issue, backward * issue, optimizer * issue]
        return [self.t_ns + np.cumsum(step_ns), step_ns, *cpu, device_step, *phases, gaps]

    def _noise(self, count: int, share: float) -> _Floats:
        return 1.0 + self._chance.normal(0.0, share, count)

    def _device_times(
        self, settings: Settings, count: int, since_change: int
    ) -> tuple[_Floats, tuple[_Floats, _Floats, _Floats, _Floats]]:
        """Return data wait and device phases (h2d, forward, backward, optimizer), in nanoseconds."""
        speed = 1.0 if settings.amp is AmpMode.OFF else _AMP_TIME
        forward = settings.batch_size * settings.grad_accumulation * _FORWARD_NS * speed
        backward = forward * (2.7 if settings.activation_checkpointing else 2.05)
        spikes = 1.0 + (self._chance.random(count) < _SPIKES) * self._chance.uniform(0.4, 0.7, count)
        settling = np.arange(since_change, since_change + count)
        spikes += np.where(settling < _FIRST_STEPS, 6.0 / (1.0 + 3.0 * settling), 0.0)
        pinned = 0.45 if settings.pin_memory else 1.0
        phases = (
            settings.batch_size * _COPY_NS * pinned * self._noise(count, 0.05),
            forward * self._noise(count, 0.006) * spikes,
            backward * self._noise(count, 0.006) * spikes,
            _OPTIMIZER_NS * self._noise(count, 0.02),
        )
        loading = (_LOADER_NS * pinned * self._noise(count, 0.06)).clip(1e5)
        delay = settings.slow_loader_ms * _NANOSECONDS_PER_MS
        if settings.num_workers:
            computing = phases[1] + phases[2] + phases[3]
            waits = np.maximum((loading + delay) / settings.num_workers - computing, 0.0)
            waits = waits + loading * 0.1
        else:
            waits = loading + delay * self._noise(count, 0.01)
        return waits, phases

    def _memory(self, settings: Settings, count: int) -> tuple[_Floats, ...]:
        """Return allocated, reserved, active, peak allocated and reserved, split bytes and retries per
        step."""
        steps = np.arange(1, count + 1)
        leak = self._faults.leaked_bytes_a_step * steps
        allocated = self.allocated_bytes() + leak + self._chance.integers(0, 24, count) * 512.0 * 1024
        bump = (self._chance.random(count) < _SPIKES) * 0.03
        peak = (self.peak_bytes(settings) + leak) * (self._noise(count, 0.002) + bump)
        lost = self._fragmented_bytes + self._faults.fragmented_bytes_a_step * steps
        required = _segments(peak * 1.02 + lost)
        cap = np.inf if settings.memory_cap_bytes is None else settings.memory_cap_bytes
        tight = required > cap
        reserved = np.minimum(np.maximum(np.maximum.accumulate(required), self._reserved_bytes), cap)
        retries = self._retries + np.cumsum(tight, dtype=np.float64)
        self._leaked_bytes += float(leak[-1])
        self._fragmented_bytes = float(lost[-1])
        self._reserved_bytes = float(reserved[-1])
        self._retries = int(retries[-1])
        split = np.maximum(reserved - allocated, 0.0) * 0.02 + lost
        active = allocated + 2.0 * _MIB
        return allocated, reserved, active, np.minimum(peak, reserved), reserved, split, retries

    def _loss(self, settings: Settings, count: int) -> _Floats:
        """Return a loss that falls from ln(256), that of a random guess, by a power law of the samples."""
        progress = settings.batch_size * settings.grad_accumulation / 32.0
        samples = self._loss_steps + progress * np.arange(1, count + 1)
        self._loss_steps = float(samples[-1])
        mean = 0.95 + 4.6 / (1.0 + samples / 60.0) ** 0.55
        noise: _Floats = mean * self._noise(count, 0.06 / np.sqrt(max(settings.batch_size, 1)))
        return noise


def _whole(values: _Floats) -> list[int]:
    whole: list[int] = values.astype(np.int64).tolist()
    return whole


def _segments(size_bytes: _Floats) -> _Floats:
    """Round up to the allocator's 20 MiB segments."""
    rounded: _Floats = np.ceil(size_bytes / (20 * _MIB)) * (20 * _MIB)
    return rounded
