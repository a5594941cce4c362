"""Transfer of scalars such as the loss from the device without waiting for it.

On an asynchronous device the loss is copied into a ring of slots (pinned, but for Apple's GPUs), behind the
step's work in the same stream; it may be read once the device has finished the step. On the CPU the tensor
itself is the ticket; a loss on an accelerator has none there, as no mark says when it may be read.
"""

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

# Returns the loss. Call it once, on any thread, after the device has finished the step.
LossTicket = Callable[[], float]

SLOTS = 4096
_CPU = torch.device("cpu")


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
        take: a ticket for a loss, a scalar without graph; None when every slot is waiting to be read, or for
            a loss on an accelerator in a training on the CPU.
    """

    def __init__(
        self,
        ring: Tensor | None,
        device: torch.device = _CPU,
        report: Callable[[torch.device], None] = lambda _device: None,
    ) -> None:
        """`ring` is a vector in pinned memory, None on a synchronous device. The step's marks are those of
        `device`. `report` is called once, with the accelerator of a loss that cannot be read."""
        self._device = device
        self._report: Callable[[torch.device], None] | None = report
        self._slots = () if ring is None else ring.unbind()
        self._free = deque(range(len(self._slots)))
        self.take: Callable[[Tensor], LossTicket | None] = (
            self._take_itself if ring is None else self._take_slot
        )

    @classmethod
    def of(
        cls, device: torch.device, report: Callable[[torch.device], None] = lambda _device: None
    ) -> "LossReader":
        """Create the reader for `device`, with `report` as in `LossReader`."""
        if device.type == "cpu":
            return cls(None, report=report)
        # A script may have another default device and type.
        ring = torch.empty(SLOTS, dtype=torch.float32, device="cpu", pin_memory=device.type != "mps")
        return cls(ring, device)

    def _take_itself(self, loss: Tensor) -> LossTicket | None:
        if loss.is_cpu:
            # As `item`, which passes the interpreter's lock to training and back for each loss.
            read: LossTicket = loss.tolist  # type: ignore[assignment]  # that of a scalar
            return read
        report, self._report = self._report, None
        if report is not None:
            report(loss.device)
        return None

    def _take_slot(self, loss: Tensor) -> LossTicket | None:
        if not self._free:
            return None
        if loss.device != self._device and loss.device.type == self._device.type:
            # Of a model on several GPUs: the step's last mark is on the stream of the first one.
            loss = loss.to(self._device, non_blocking=True)
        number = self._free.popleft()
        slot = self._slots[number]
        slot.copy_(loss, non_blocking=True)
        return SlotTicket(slot, number, self._free)
