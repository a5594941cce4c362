"""Memory samples every two seconds: allocator, process and device in one reading."""

from harness.device.allocated import allocated_bytes
from harness.device.memory_share import MemoryShare
from harness.records.memory import MemorySampleRow
from harness.watch.context import RunContext

PERIOD_S = 2.0
# The largest share of time for samples: with very many blocks in the allocator the period becomes longer.
_MOST_SHARE = 0.002


class MemorySampler:
    """A job of the sampler. It does not reset the peaks of the training thread."""

    def __init__(self, context: RunContext, share: MemoryShare) -> None:
        self._context = context
        self._share = share
        self._seq = 0
        self._cost_s = 0.0

    def sample(self) -> None:
        """Take one sample."""
        context = self._context
        began_ns = context.clock_ns()
        allocator = context.device.read_allocator()
        share = self._share.read()
        context.journal.put(
            MemorySampleRow(
                seq=self._seq,
                t_ns=began_ns,
                step=context.last_step,
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
        self._cost_s = (context.clock_ns() - began_ns) / 1e9

    def pause_s(self) -> float:
        """Seconds until the next sample."""
        return max(PERIOD_S, self._cost_s / _MOST_SHARE)
