"""Transfer of scalars such as the loss from the device without waiting for it.

On an asynchronous device the loss is copied into a ring of slots (pinned, but for Apple's GPUs), behind the
step's work in the same stream; it may be read once the device has finished the step. On the CPU it is read at
once: the tensor may hold far more memory than its number, as that of `mse_loss`, in which torch computes the
losses of all elements before it shrinks it.
"""

from collections import deque
from collections.abc import Callable
from operator import methodcaller

import torch
from torch import Tensor

# The loss, or what returns it: to be called on any thread, after the device has finished the step.
LossTicket = Callable[[], float] | float

SLOTS = 4096
_CPU = torch.device("cpu")


def plain_scalar(scalar: Tensor) -> Tensor | None:
    """Return a plain tensor with the value of `scalar`, a tensor of a class that is not torch's own; None if
    there is none. A DTensor (tensor parallelism) has one, unless this rank has only a part of its value: no
    communication is begun here."""
    placements = getattr(scalar, "placements", None)
    if placements is not None:
        local: Tensor = scalar.to_local()  # type: ignore[attr-defined]  # of DTensor
        return plain_scalar(local) if all(one.is_replicate() for one in placements) else None
    return None if hasattr(scalar, "__tensor_flatten__") else scalar


class SlotTicket:
    """A loss in transfer to a slot of a pinned ring."""

    __slots__ = ("_free", "_number", "_slot", "_value")

    def __init__(self, slot: Tensor, number: int, free: deque[int]) -> None:
        self._slot = slot
        self._number = number
        self._free = free
        self._value: float | None = None

    def __call__(self) -> float:
        """Return the value, and free the slot at the first call: it may have another loss at the next one."""
        if self._value is None:
            self._value = float(self._slot)
            self._free.append(self._number)
        return self._value


class LossReader:
    """Source of tickets for losses. One writer (the training thread), one reader (the writer's thread).

    Attributes:
        take: a ticket for a loss, a scalar without graph, as `take_slot`; on a synchronous device its value.
    """

    def __init__(self, ring: Tensor | None, device: torch.device = _CPU) -> None:
        """`ring` is a vector in pinned memory, None on a synchronous device. The step's marks are those of
        `device`."""
        self._device = device
        self._slots = () if ring is None else ring.unbind()
        self._free = deque(range(len(self._slots)))
        # `item` would pass the interpreter's lock to another thread and back for each loss.
        self.take: Callable[[Tensor], LossTicket | None] = (
            methodcaller("tolist") if ring is None else self.take_slot
        )

    @classmethod
    def of(cls, device: torch.device) -> "LossReader":
        """Create the reader for `device`."""
        if device.type == "cpu":
            return cls(None)
        # A script may have another default device and type.
        ring = torch.empty(SLOTS, dtype=torch.float32, device="cpu", pin_memory=device.type != "mps")
        return cls(ring, device)

    def take_slot(self, loss: Tensor) -> SlotTicket | None:
        """Copy `loss` into a slot; return its ticket, or None when every slot is waiting to be read."""
        if not self._free:
            return None
        if loss.device != self._device and loss.device.type == self._device.type:
            # Of a model on several GPUs: the step's last mark is on the stream of the first one.
            loss = loss.to(self._device, non_blocking=True)
        number = self._free.popleft()
        slot = self._slots[number]
        slot.copy_(loss, non_blocking=True)
        return SlotTicket(slot, number, self._free)
