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
from harness.attach.plain_observation import PlainObservation
from harness.closing import Closing
from harness.records.run import Phase
from harness.watch.readback import plain_scalar
from harness.watch.training import Replaced

REPLAYED = (
    "Steps are replays of a CUDA graph, which does what it did when it was captured: AMP, the factor of the "
    "learning rate and other settings of the model and the optimizer do not change it. The time of a replay "
    "is that of the optimizer's phase, or of the backward pass without an optimizer in the graph."
)


class Captured:
    """The parts of a training that a graph contains.

    Attributes:
        optimizers: those that update, one per update, in order.
        loss: the loss of the first backward pass, which each replay fills anew.
        scaled: what a GradScaler made of a loss, and that loss.
    """

    def __init__(self) -> None:
        self.optimizers: list[torch.optim.Optimizer] = []
        self.loss: Tensor | None = None
        self.scaled: tuple[Any, Any] = (None, None)

    @property
    def trains(self) -> bool:
        """Return whether it contains an update, or a backward pass that began from a loss."""
        return bool(self.optimizers) or self.loss is not None

    def end(self) -> None:
        """The capture has ended: keep no gradient graph alive."""
        self.scaled = (None, None)


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
        self._capture.callback(captured.end)

        def update_began(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
            if self._guard.has_suspended():
                captured.optimizers.append(optimizer)

        self._capture.callback(register_optimizer_step_pre_hook(update_began).remove)
        self._capture.callback(
            Replaced(torch.autograd, "backward", partial(self._note_loss, captured)).remove
        )
        self._capture.callback(
            Replaced(torch.amp.GradScaler, "scale", partial(self._note_scaled, captured)).remove
        )

    def _ended(self) -> None:
        self._capture.close()
        self._guard.resume()
        observation = self._entries.observation
        if observation is not None and not observation.under_way.has_begun:
            observation.tracker.restart()

    def _note_loss(self, captured: Captured, original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            scaled, unscaled = captured.scaled
            loss = unscaled if tensors is scaled else tensors
            is_loss = isinstance(loss, Tensor) and loss.numel() == 1
            if is_loss and captured.loss is None and self._guard.has_suspended():
                captured.loss = plain_scalar(loss.detach().reshape(()))
            original(tensors, *args, **kwargs)

        return backward

    def _note_scaled(self, captured: Captured, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def scale(scaler: torch.amp.GradScaler, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            captured.scaled = scaled, outputs
            return scaled

        return scale

    def _replay(self, original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)
        def replay(graph: CUDAGraph, /) -> None:
            captured, observation = self._graphs.get(graph), self._entries.observation
            # The graphs that torch.compile makes train nothing by themselves.
            if (
                captured is None
                or not captured.trains
                or observation is None
                or get_ident() != self._guard.thread
            ):
                original(graph)
                return
            self._guard.run(self._replay_begins, captured, observation)
            original(graph)
            self._guard.run(self._replayed, captured, observation)

        return replay

    def _replay_begins(self, captured: Captured, observation: PlainObservation) -> None:
        """A graph is about to be replayed, behind the copies of its inputs."""
        if (lap := observation.steps.timer.lap) is not None:
            lap(Phase.H2D)
        for optimizer in captured.optimizers[:1]:
            observation.update_began(optimizer)

    def _replayed(self, captured: Captured, observation: PlainObservation) -> None:
        """A graph was replayed, behind the begin of its first update. Raises as `update_ended`."""
        if observation.under_way.logged_loss is None:
            observation.under_way.logged_loss = captured.loss
        lap = observation.steps.timer.lap
        if not captured.optimizers and lap is not None:
            lap(Phase.BACKWARD)
        for number, optimizer in enumerate(captured.optimizers):
            if number:
                observation.update_began(optimizer)
            elif not self._has_replayed:
                self._has_replayed = True
                observation.warn("CUDA graph", REPLAYED)
            observation.update_ended(optimizer)
