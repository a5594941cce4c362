"""Transfer of scalars such as the loss from the device without waiting for it.

On an asynchronous device the loss is copied into a ring of slots (pinned, but for Apple's GPUs), behind the
step's work in the same stream; it may be read once the device has finished the step. On the CPU the tensor
itself is the ticket.
"""

from collections import deque
from collections.abc import Callable
from operator import attrgetter

import torch
from torch import Tensor

# Returns the loss. Call it once, on any thread, after the device has finished the step.
LossTicket = Callable[[], float]

SLOTS = 4096


class SlotTicket:
    """A loss in transfer to a slot of a pinned ring."""

    __slots__ = ("_free", "_number", "_slot")

    def __init__(self, slot: Tensor, number: int, free: deque[int]) -> None:
        self._slot = slot
        self._number = number
        self._free = free

    def __call__(self) -> float:
        """Return the value, and free the slot."""
        value = float(self._slot)
        self._free.append(self._number)
        return value


class LossReader:
    """Source of tickets for losses. One writer (the training thread), one reader (the writer's thread).

    Attributes:
        take: a ticket for a loss, a scalar without graph; None when every slot is waiting to be read.
    """

    def __init__(self, ring: Tensor | None) -> None:
        """`ring` is a vector in pinned memory, None on a synchronous device."""
        self._slots = () if ring is None else ring.unbind()
        self._free = deque(range(len(self._slots)))
        # As `item`, which passes the interpreter's lock to training and back for each loss.
        self.take: Callable[[Tensor], LossTicket | None] = (
            attrgetter("tolist") if ring is None else self._take_slot
        )

    @classmethod
    def of(cls, device: torch.device) -> "LossReader":
        """Create the reader for `device`."""
        if device.type == "cpu":
            return cls(None)
        return cls(torch.empty(SLOTS, pin_memory=device.type != "mps"))

    def _take_slot(self, loss: Tensor) -> LossTicket | None:
        if not self._free:
            return None
        number = self._free.popleft()
        slot = self._slots[number]
        slot.copy_(loss, non_blocking=True)
        return SlotTicket(slot, number, self._free)
