"""Puts a follower of allocations around what a workload calls in a step, and takes it off again."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor

from harness.memory_records import MemoryCategory
from harness.records import Phase
from harness.tracking.blocks import Block, Followed, Guarded, Owner
from harness.tracking.graphs import GraphWatch
from harness.tracking.owners import (
    Owned,
    Sized,
    gradients,
    other_tensors,
    owned_tensors,
    parameter_names,
    sizes,
    storage_bytes,
    storage_id,
    tensors_in,
)
from harness.train.workload import Batch, Workload

_BATCH = Owner(MemoryCategory.INPUTS, None, "the batch")


class Follower(Protocol):
    """Follows allocations; `harness.tracking` has one for tensors and one for CUDA's allocator."""

    def start(self, owned: Iterable[Owned]) -> None:
        """Begin with what there is already, and whose it is."""
        ...

    def begin_window(self) -> None:
        """From now on keep what `end_window` needs, beside what is alive."""
        ...

    def begin_step(self) -> None:
        """A step begins."""
        ...

    def phase(self, phase: Phase) -> AbstractContextManager[None]:
        """Follow what is allocated within."""
        ...

    def own(self, owned: Iterable[Owned]) -> None:
        """Say whose the tensors are that are there now."""
        ...

    def end_step(self) -> None:
        """A step ends."""
        ...

    def end_window(self) -> Followed:
        """What the steps since `begin_window` gave."""
        ...

    def live(self) -> list[Block]:
        """What is alive now; from any thread."""
        ...

    def site_of(self, tensor: Tensor) -> str | None:
        """The line that made a tensor; None where it was not followed."""
        ...

    def stop(self) -> None:
        """Follow nothing any more. Idempotent."""
        ...


class Following:
    """A follower on a workload, between `attach` and `detach`; used on the training thread.

    It stands in for the functions that a step calls, which are attributes of the workload, so a step pays
    nothing when it is off. Settings that take effect replace them: then `is_attached` is False.

    Attributes:
        sizes: what the model and its optimizer held when they were counted last; see `count_next`.
        graphs: the graphs of the steps' losses.
    """

    def __init__(self, workload: Workload, follower: Follower, guarded: Guarded) -> None:
        self._workload = workload
        self._follower = follower
        self._guarded = guarded
        self._names = parameter_names(workload.model)
        self._put: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}
        self._is_new = True
        self._is_counting = False
        self.sizes: list[Sized] = []
        self.graphs = GraphWatch()

    def count_next(self) -> None:
        """Fill `sizes` at the next update, when there are gradients."""
        self._is_counting = True

    @property
    def is_attached(self) -> bool:
        """Whether the next step is followed."""
        return bool(self._put) and all(
            getattr(self._workload, name) is ours for name, (ours, _) in self._put.items()
        )

    def attach(self) -> int:
        """Follow from the next step on; returns the bytes of what is there already."""
        workload = self._workload
        owned = list(owned_tensors(workload.model, workload.optimizer))
        known = {address for tensor, _ in owned if (address := storage_id(tensor)) is not None}
        loss = Owned(workload.loss, Owner(MemoryCategory.TEMPORARIES, None, "the loss"))
        # What the data set holds was there before memory was counted.
        known |= {a for tensor in tensors_in(workload.source) if (a := storage_id(tensor)) is not None}
        others = other_tensors(workload.loss.device.type, known | {storage_id(workload.loss) or 0})
        there = [*owned, loss, *others]
        self._follower.start(there)
        self.reattach()
        return sum(storage_bytes(tensor) for tensor, _ in there)

    def reattach(self) -> None:
        """Stand in for the workload's functions again, after settings replaced them."""
        self.detach()
        self._is_new = True
        for name, function in self._stand_ins().items():
            self._put[name] = (function, getattr(self._workload, name))
            setattr(self._workload, name, function)

    def detach(self) -> None:
        """Put back what is still ours. Idempotent."""
        for name, (ours, before) in self._put.items():
            if getattr(self._workload, name) is ours:
                setattr(self._workload, name, before)
        self._put = {}

    def _count(self) -> None:
        self.sizes = sizes(self._workload.model, self._workload.optimizer)

    def _own(self, owned: Callable[[], Iterable[Owned]]) -> None:
        self._guarded("naming tensors", lambda: self._follower.own(owned()))

    def _stand_ins(self) -> dict[str, Callable[..., Any]]:
        workload, phase = self._workload, self._follower.phase
        next_batch, to_device, forward = workload.next_batch, workload.to_device, workload.forward
        backward, update, tidy = workload.backward, workload.update, workload.tidy

        def next_batch_followed() -> Batch:
            with phase(Phase.DATA_WAIT):
                return next_batch()

        def to_device_followed(batch: Batch) -> Batch:
            with phase(Phase.H2D):
                moved = to_device(batch)
            self._own(lambda: (Owned(tensor, _BATCH) for tensor in moved))
            return moved

        def forward_followed(inputs: Tensor, targets: Tensor) -> Tensor:
            with phase(Phase.FORWARD):
                loss = forward(inputs, targets)
            self._guarded("following graphs", lambda: self.graphs.note(loss))
            return loss

        def backward_followed(loss: Tensor) -> None:
            with phase(Phase.BACKWARD):
                backward(loss)

        def update_followed() -> None:
            self._own(lambda: gradients(self._names))
            if self._is_counting:
                self._is_counting = False
                self._guarded("memory census", self._count)
            with phase(Phase.OPTIMIZER):
                update()
            if self._is_new:  # Its state is made in its first step.
                self._is_new = False
                self._own(lambda: owned_tensors(workload.model, workload.optimizer))

        def tidy_followed(step: int) -> None:
            with phase(Phase.OPTIMIZER):
                tidy(step)
            self.graphs.step_ended()

        return {
            "next_batch": next_batch_followed,
            "to_device": to_device_followed,
            "forward": forward_followed,
            "backward": backward_followed,
            "update": update_followed,
            "tidy": tidy_followed,
        }
