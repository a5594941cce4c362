"""Tracking of a training's allocations through wrappers around the calls of a step."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor

from harness.records.memory import MemoryCategory
from harness.records.run import Phase
from harness.tracking.blocks import GuardedCall, LiveBlock, Owner, TrackingResult
from harness.tracking.graphs import GraphWatch
from harness.tracking.owners import (
    OwnedSize,
    OwnedTensor,
    divide,
    gradients,
    other_tensors,
    owned_tensors,
    parameter_names,
    parts_of,
    sizes,
    storage_bytes,
    storage_id,
    tensors_in,
    without_wrappers,
)
from harness.watch.training import Call, Training, Wrapped, Wrapper

_BATCH = Owner(MemoryCategory.INPUTS, None, "the batch")


class AllocationFollower(Protocol):
    """Tracker of allocations; `harness.tracking` has one for tensors and one for CUDA's allocator."""

    def start(self, owned: Iterable[OwnedTensor]) -> None:
        """Start with the existing tensors and their attribution."""
        ...

    def begin_window(self) -> None:
        """Begin the window of `end_window`, in addition to the live allocations."""
        ...

    def begin_step(self) -> None:
        """A step begins."""
        ...

    def follow_between(self) -> None:
        """Track allocations between phases too from now on, on the calling thread, until `leave_between`."""
        ...

    def leave_between(self) -> None:
        """Track allocations in phases only. Idempotent."""
        ...

    def phase(self, phase: Phase) -> AbstractContextManager[None]:
        """Track allocations inside the context."""
        ...

    def own(self, owned: Iterable[OwnedTensor]) -> None:
        """Set the attribution of existing tensors."""
        ...

    def end_step(self) -> None:
        """A step ends."""
        ...

    def end_window(self) -> TrackingResult:
        """Return the result of the steps since `begin_window`."""
        ...

    def live(self) -> list[LiveBlock]:
        """Return the live allocations; from any thread."""
        ...

    def site_of(self, tensor: Tensor) -> str | None:
        """Return the allocation site of a tensor; None if it was not tracked."""
        ...

    def stop(self) -> None:
        """Stop tracking. Idempotent."""
        ...


class FollowedStep:
    """A follower attached to a training, between `attach` and `detach`; used on the training thread.

    It wraps the functions that a step calls, so there is no overhead while it is off. A change of settings
    may replace them: then `is_attached` is False.

    Attributes:
        sizes: tensor sizes of model and optimizer on the device at the last count; see `count_next`.
        graphs: the graphs of the steps' losses.
    """

    def __init__(
        self,
        training: Training,
        follower: AllocationFollower,
        guarded: GuardedCall,
        device: torch.device,
    ) -> None:
        """`device` is the one that `sizes` are of."""
        self._training = training
        self._device = device
        self._follower = follower
        self._guarded = guarded
        self._names = parameter_names(training.model, training.optimizer)
        self._wrapped: list[Wrapped] = []
        self._is_new = True
        self._is_counting = False
        self.sizes: list[OwnedSize] = []
        self.graphs = GraphWatch()

    def count_next(self) -> None:
        """Fill `sizes` at the next update, when there are gradients."""
        self._is_counting = True

    @property
    def is_attached(self) -> bool:
        """Return whether the next step is followed."""
        return bool(self._wrapped) and all(wrapped.is_on for wrapped in self._wrapped)

    def attach(self) -> int:
        """Track from the next step on; return the bytes of the existing tensors."""
        training = self._training
        owned = list(owned_tensors(training.model, training.optimizer))
        addresses = {address for tensor, _ in owned if (address := storage_id(tensor)) is not None}
        loss = OwnedTensor(training.loss, Owner(MemoryCategory.TEMPORARIES, None, "the loss"))
        # The data set existed before memory was counted.
        addresses |= {a for tensor in tensors_in(training.data) if (a := storage_id(tensor)) is not None}
        addresses |= {storage_id(part) or 0 for part in parts_of(training.loss)}
        others = other_tensors(training.loss.device.type, addresses)
        there = [*owned, *without_wrappers([loss]), *others]
        self._follower.start(there)
        self.reattach()
        return sum(storage_bytes(tensor) for tensor, _ in there)

    def reattach(self) -> None:
        """Wrap the functions again, after a change of settings replaced them."""
        self.detach()
        self._is_new = True
        self._wrapped = [self._training.wrap(call, wrapper) for call, wrapper in self._wrappers().items()]
        if self._training.computes_between_calls:
            self._follower.follow_between()
            self._wrapped.append(self._training.wrap("compile", self._compile))

    def detach(self) -> None:
        """Remove the wrappers still in place. Idempotent."""
        self._follower.leave_between()
        for wrapped in self._wrapped:
            wrapped.remove()
        self._wrapped = []

    def _count(self) -> None:
        self.sizes, _ = divide(sizes(self._training.model, self._training.optimizer), self._device)

    def _own(self, owned: Callable[[], Iterable[OwnedTensor]]) -> None:
        self._guarded("naming tensors", lambda: self._follower.own(without_wrappers(owned())))

    def _wrappers(self) -> dict[str, Wrapper]:
        return {
            "next_batch": self._next_batch,
            "to_device": self._to_device,
            "forward": self._forward,
            "backward": self._backward,
            "update": self._update,
            "tidy": self._tidy,
        }

    def _compile(self, compile_follows: Call) -> Call:
        def compile_follows_detached() -> None:
            self.detach()  # The function may be called before the step ends.
            compile_follows()

        return compile_follows_detached

    def _next_batch(self, next_batch: Call) -> Call:
        def next_batch_followed() -> object:
            with self._follower.phase(Phase.DATA_WAIT):
                return next_batch()

        return next_batch_followed

    def _to_device(self, to_device: Call) -> Call:
        def to_device_followed(batch: object) -> Iterable[Tensor]:
            with self._follower.phase(Phase.H2D):
                moved: Iterable[Tensor] = to_device(batch)
            self._own(lambda: (OwnedTensor(tensor, _BATCH) for tensor in moved))
            return moved

        return to_device_followed

    def _forward(self, forward: Call) -> Call:
        def forward_followed(*inputs: object) -> object:
            with self._follower.phase(Phase.FORWARD):
                return forward(*inputs)

        return forward_followed

    def _backward(self, backward: Call) -> Call:
        def backward_followed(loss: Tensor | None) -> None:
            if loss is not None:
                self._guarded("following graphs", lambda: self.graphs.note(loss))
            with self._follower.phase(Phase.BACKWARD):
                backward(loss)

        return backward_followed

    def _update(self, update: Call) -> Call:
        def update_followed() -> None:
            self._own(lambda: gradients(self._names))
            if self._is_counting:
                self._is_counting = False
                self._guarded("memory census", self._count)
            with self._follower.phase(Phase.OPTIMIZER):
                update()
            if self._is_new:  # Its state is created in its first step.
                self._is_new = False
                self._own(lambda: owned_tensors(self._training.model, self._training.optimizer))

        return update_followed

    def _tidy(self, tidy: Call) -> Call:
        def tidy_followed(step: int) -> None:
            with self._follower.phase(Phase.OPTIMIZER):
                tidy(step)
            self.graphs.step_ended()

        return tidy_followed
