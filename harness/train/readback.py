"""Brings scalars such as the loss back from the device without waiting for it.

On an asynchronous device the loss is copied into a ring of pinned slots, behind the step's work in the same
stream; it may be read once the device has finished the step. On the CPU the tensor itself is the ticket.
"""

from collections import deque
from typing import Protocol

import torch


class LossTicket(Protocol):
    """A loss that can be read once its step is done on the device."""

    def read(self) -> float:
        """The value. Call it only after the step's end is known to be reached, and once."""
        ...


class ValueTicket:
    """A loss that lies in host memory."""

    __slots__ = ("_value",)

    def __init__(self, value: torch.Tensor | float) -> None:
        self._value = value

    def read(self) -> float:
        """The value."""
        return float(self._value)


class SlotTicket:
    """A loss on its way into a slot of a pinned ring."""

    __slots__ = ("_free", "_ring", "_slot")

    def __init__(self, ring: torch.Tensor, slot: int, free: deque[int]) -> None:
        self._ring = ring
        self._slot = slot
        self._free = free

    def read(self) -> float:
        """The value; frees the slot."""
        value = float(self._ring[self._slot])
        self._free.append(self._slot)
        return value


class LossReader:
    """Hands out tickets for losses. One writer (the training thread), one reader (the writer's thread)."""

    def __init__(self, device: torch.device, slots: int = 4096) -> None:
        self._ring = torch.empty(slots, pin_memory=True) if device.type == "cuda" else None
        self._free: deque[int] = deque(range(slots))

    def take(self, loss: torch.Tensor | float) -> LossTicket | None:
        """A ticket for `loss`, a scalar without graph; None when every slot is waiting to be read."""
        if self._ring is None or isinstance(loss, float):
            return ValueTicket(loss)
        if not self._free:
            return None
        slot = self._free.popleft()
        self._ring[slot].copy_(loss, non_blocking=True)
        return SlotTicket(self._ring, slot, self._free)
