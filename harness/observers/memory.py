"""Samples where memory is, every two seconds: allocator, process and device, read in one go."""

from collections.abc import Callable
from typing import Protocol

from harness.device.allocated import allocated_bytes
from harness.device.memory_share import MemoryShare
from harness.device.protocol import Device
from harness.memory_records import MemorySampleRow

PERIOD_S = 2.0
_MOST_SHARE = 0.002
"""Of the time that samples may take: where the allocator has very many blocks they come more rarely."""


class SampleSink(Protocol):
    """Where samples go; never blocks."""

    def put(self, row: MemorySampleRow) -> None:
        """Record a sample."""
        ...


class MemorySampler:
    """A job of the sampler. It only looks: the peaks that the training thread keeps are left alone."""

    def __init__(
        self,
        device: Device,
        share: MemoryShare,
        sink: SampleSink,
        clock_ns: Callable[[], int],
        last_step: Callable[[], int],
    ) -> None:
        self._device = device
        self._share = share
        self._sink = sink
        self._clock_ns = clock_ns
        self._last_step = last_step
        self._seq = 0
        self._cost_s = 0.0

    def sample(self) -> None:
        """Take one sample."""
        began_ns = self._clock_ns()
        allocator = self._device.read_allocator()
        share = self._share.read()
        self._sink.put(
            MemorySampleRow(
                seq=self._seq,
                t_ns=began_ns,
                step=self._last_step(),
                allocated_bytes=allocated_bytes(allocator),
                reserved_bytes=allocator.reserved_bytes,
                free_bytes=allocator.free_bytes,
                split_free_bytes=allocator.split_free_bytes,
                largest_free_bytes=allocator.largest_free_bytes,
                live_blocks=allocator.live_blocks,
                segments=allocator.segments,
                process_bytes=share.process_bytes,
                used_bytes=share.used_bytes,
                total_bytes=share.total_bytes,
            )
        )
        self._seq += 1
        self._cost_s = (self._clock_ns() - began_ns) / 1e9

    def pause_s(self) -> float:
        """Seconds until the next sample."""
        return max(PERIOD_S, self._cost_s / _MOST_SHARE)
