"""The CUDA graphs of a script. While one is captured nothing is followed: no work is done, and events or
copies of ours would become a part of the graph. A replay of a graph that contains updates of optimizers is a
step for each.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial, wraps
from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.cuda import CUDAGraph
from torch.optim.optimizer import register_optimizer_step_pre_hook

from harness.attach.entries import StepEntries
from harness.closing import Closing
from harness.watch.training import Replaced

REPLAYED = (
    "Steps are replays of a CUDA graph, which does what it did when it was captured: AMP, the factor of the "
    "learning rate and other settings of the model and the optimizer do not change it. The time of a replay "
    "is that of the optimizer's phase."
)


class Captured:
    """What a graph contains of training.

    Attributes:
        optimizers: those that update, one per update, in order.
        loss: the tensor that the first backward pass began from, which each replay fills anew.
    """

    def __init__(self) -> None:
        self.optimizers: list[torch.optim.Optimizer] = []
        self.loss: Tensor | None = None


class CapturedGraphs(Closing):
    """The patches of `torch.cuda.CUDAGraph`, between `__init__` and `close`."""

    def __init__(self, entries: StepEntries) -> None:
        self._entries, self._guard = entries, entries.guard
        self._graphs: WeakKeyDictionary[CUDAGraph, Captured] = WeakKeyDictionary()
        self._capture, self._stack = ExitStack(), ExitStack()
        self._has_replayed = False
        for name, wrapper in (
            ("capture_begin", self._capture_begin),
            ("capture_end", self._capture_end),
            ("replay", self._replay),
        ):
            self._stack.callback(Replaced(CUDAGraph, name, wrapper).remove)

    def close(self) -> None:
        """Restore everything. Idempotent."""
        self._capture.close()
        self._stack.close()

    def _capture_begin(self, original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)
        def capture_begin(graph: CUDAGraph, /, *args: Any, **kwargs: Any) -> None:
            if not self._guard.follows():
                original(graph, *args, **kwargs)
                return
            self._guard.run(self._began, graph)
            try:
                original(graph, *args, **kwargs)
            except BaseException:
                self._guard.run(self._ended)
                raise

        return capture_begin

    def _capture_end(self, original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)
        def capture_end(graph: CUDAGraph, /) -> None:
            try:
                original(graph)
            finally:
                if self._guard.has_suspended():
                    self._guard.run(self._ended)

        return capture_end

    def _began(self, graph: CUDAGraph) -> None:
        self._guard.suspend()
        self._graphs[graph] = captured = Captured()

        def update_began(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
            if self._guard.has_suspended():
                captured.optimizers.append(optimizer)

        self._capture.callback(register_optimizer_step_pre_hook(update_began).remove)
        backward = Replaced(torch.autograd, "backward", partial(self._note_loss, captured))
        self._capture.callback(backward.remove)

    def _ended(self) -> None:
        self._capture.close()
        self._guard.resume()
        observation = self._entries.observation
        if observation is not None and not observation.under_way.has_begun:
            observation.tracker.restart()

    def _note_loss(self, captured: Captured, original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            is_loss = isinstance(tensors, Tensor) and tensors.numel() == 1
            if is_loss and captured.loss is None and self._guard.has_suspended():
                captured.loss = tensors.detach().reshape(())
            original(tensors, *args, **kwargs)

        return backward

    def _replay(self, original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)
        def replay(graph: CUDAGraph, /) -> None:
            captured, guard = self._graphs.get(graph), self._guard
            observation = self._entries.observation
            if not (captured and captured.optimizers and observation and get_ident() == guard.thread):
                original(graph)
                return
            first, *further = captured.optimizers
            guard.run(observation.update_began, first)
            original(graph)
            if not self._has_replayed:
                self._has_replayed = True
                guard.run(observation.warn, "CUDA graph", REPLAYED)
            if observation.under_way.logged_loss is None:
                observation.under_way.logged_loss = captured.loss
            guard.run(observation.update_ended, first)
            for optimizer in further:
                guard.run(observation.update_began, optimizer)
                guard.run(observation.update_ended, optimizer)

        return replay
