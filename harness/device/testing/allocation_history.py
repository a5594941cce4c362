"""A fake of the functions of `torch.cuda.memory` that record the allocation history, without a GPU.

It follows the rules of torch's ring buffer (`RingBuffer` in c10/cuda/CUDACachingAllocator.cpp), including the
unchecked write: what corrupts the heap of a real process raises an error here.
"""

from typing import Any, Literal


class HeapOverflowError(Exception):
    """An entry was written past the end of the ring: a real process would have corrupted its heap."""


class FakeMemoryHistory:
    """Behaves as `torch.cuda.memory` does for one GPU.

    Attributes:
        enabled: the mode in effect; None records nothing.
    """

    def __init__(self) -> None:
        self.enabled: Literal["state", "all"] | None = None
        self._entries: list[dict[str, Any]] = []
        self._next = 0
        self._max_entries = 1

    def _record_memory_history(
        self,
        enabled: Literal["state", "all"] | None = "all",
        context: Literal["state", "alloc", "all"] | None = "all",  # noqa: ARG002 - torch's signature
        stacks: Literal["python", "all"] = "all",  # noqa: ARG002 - torch's signature
        max_entries: int = 1 << 62,
    ) -> None:
        """Set the mode. Only None empties the ring; "state" limits it to one entry and changes neither the
        entries nor the position of the next write."""
        self.enabled = enabled
        self._max_entries = max(1, max_entries) if enabled == "all" else 1
        if enabled is None:
            self._entries, self._next = [], 0

    def is_enabled(self) -> bool:
        """Return whether a history is recorded, as `torch._C._cuda_isHistoryEnabled`."""
        return self.enabled is not None

    def _snapshot(self) -> dict[str, Any]:
        """Return no segments, and the entries from the oldest on."""
        return {
            "segments": [],
            "device_traces": [[*self._entries[self._next :], *self._entries[: self._next]]],
        }

    def record(self, events: int) -> None:
        """Record this number of allocations. Raises HeapOverflowError where torch would write past its
        ring."""
        for number in range(events if self.enabled is not None else 0):
            entry = {"action": "alloc", "addr": 512 * number, "size": 512, "stream": 0, "frames": []}
            if len(self._entries) < self._max_entries:
                self._entries.append(entry)
                continue
            if self._next >= len(self._entries):
                raise HeapOverflowError(
                    f"entry {self._next:,} of a ring of {len(self._entries):,} was written "
                    f"while its limit was {self._max_entries:,}"
                )
            self._entries[self._next] = entry
            self._next += 1
            if self._next == self._max_entries:
                self._next = 0
