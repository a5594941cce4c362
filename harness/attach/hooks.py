"""Torch's entry points, patched so that a script's step can be followed.

Patched are `DataLoader.__iter__`, `torch.autograd.backward`, `GradScaler.scale` and `step`, and, once the
models are known, the `__call__` of their classes: an instance would carry a hook of ours into its copies and
pickles. Optimizer steps have global hooks of torch's own.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial, wraps
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader

from harness.attach.autocast import RegionState, following_regions
from harness.closing import Closing
from harness.watch.training import Replaced


class StepEvents(Protocol):
    """The receiver of events; called on any thread. `follows` is checked before every other call."""

    def follows(self) -> bool:
        """Return whether the calling thread is followed."""
        ...

    def loader_opened(
        self, loader: DataLoader[Any], open_iterator: Callable[[], Iterator[Any]]
    ) -> Iterator[Any]:
        """Return the iterator of a loader, from `open_iterator`."""
        ...

    def model_called(self, model: nn.Module, inputs: tuple[Any, ...], call: Callable[[], Any]) -> Any:
        """Return the output of a model's `call`."""
        ...

    def model_seen(self, model: nn.Module, inputs: tuple[Any, ...]) -> None:
        """A module is called from outside of any other module, while the models are not known yet."""
        ...

    def gradients_requested(self, loss: Tensor | None, call: Callable[[], Any]) -> Any:
        """Return the result of a backward pass, `call`."""
        ...

    def region_entered(self, region: torch.autocast) -> RegionState | None:
        """Return the state for an autocast region that is about to be entered; None: its own."""
        ...

    def loss_scaled(self, loss: Any, scaled: Any) -> None:
        """A GradScaler scaled a loss."""
        ...

    def update_began(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to step."""
        ...

    def update_ended(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has stepped."""
        ...

    def scaler_stepped(self, optimizer: torch.optim.Optimizer, call: Callable[[], Any]) -> Any:
        """Return the result of a GradScaler's step, `call`, which may skip the optimizer's."""
        ...


class Hooks(Closing):
    """The patches, between `__init__` and `close`."""

    def __init__(self, events: StepEvents) -> None:
        self._events = events
        self._stack = ExitStack()
        self._discovery = ExitStack()
        self._model_ids: set[int] = set()
        self._classes: set[type[nn.Module]] = set()
        self._depth = 0
        self._replace(DataLoader, "__iter__", self._iter)
        self._replace(torch.autograd, "backward", self._backward)
        self._replace(torch.autocast, "__enter__", partial(following_regions, events))
        self._replace(torch.amp.GradScaler, "scale", self._scale)
        self._replace(torch.amp.GradScaler, "step", self._scaler_step)
        for handle in (
            register_optimizer_step_pre_hook(lambda one, _args, _kwargs: self._update_began(one)),
            register_optimizer_step_post_hook(lambda one, _args, _kwargs: self._update_ended(one)),
        ):
            self._stack.callback(handle.remove)
        for hook in (
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
        ):
            self._discovery.callback(hook.remove)

    def follow(self, models: list[nn.Module]) -> None:
        """Follow the calls of `models` from now on, and no longer those of every module."""
        self._discovery.close()
        self._model_ids |= {id(model) for model in models}
        for kind in {type(model) for model in models} - self._classes:
            self._classes.add(kind)
            self._replace(kind, "__call__", self._call)

    def close(self) -> None:
        """Restore everything. Idempotent."""
        self._discovery.close()
        self._stack.close()

    def _replace(self, owner: object, name: str, wrapper: Callable[[Any], Any]) -> None:
        self._stack.callback(Replaced(owner, name, wrapper).remove)

    def _iter(self, original: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
        @wraps(original)
        def open_loader(loader: DataLoader[Any]) -> Iterator[Any]:
            if not self._events.follows():
                return original(loader)
            return self._events.loader_opened(loader, partial(original, loader))

        return open_loader

    def _call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def call(model: nn.Module, *inputs: Any, **kwargs: Any) -> Any:
            if id(model) not in self._model_ids or not self._events.follows():
                return original(model, *inputs, **kwargs)
            seen = inputs or tuple(kwargs.values())
            return self._events.model_called(model, seen, partial(original, model, *inputs, **kwargs))

        return call

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._events.follows():
                return original(tensors, *args, **kwargs)
            loss = tensors if isinstance(tensors, Tensor) else next(iter(tensors), None)
            loss = loss if isinstance(loss, Tensor) else None
            return self._events.gradients_requested(loss, partial(original, tensors, *args, **kwargs))

        return backward

    def _scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def scale(scaler: torch.amp.GradScaler, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            if self._events.follows():
                self._events.loss_scaled(outputs, scaled)
            return scaled

        return scale

    def _scaler_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def step(
            scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any
        ) -> Any:
            call = partial(original, scaler, optimizer, *args, **kwargs)
            return self._events.scaler_stepped(optimizer, call) if self._events.follows() else call()

        return step

    def _update_began(self, optimizer: torch.optim.Optimizer) -> None:
        if self._events.follows():
            self._events.update_began(optimizer)

    def _update_ended(self, optimizer: torch.optim.Optimizer) -> None:
        if self._events.follows():
            self._events.update_ended(optimizer)

    def _enter_module(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self._events.follows():
            self._depth += 1
            if self._depth == 1:
                self._events.model_seen(module, inputs)

    def _leave_module(self, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        if self._events.follows():
            self._depth = max(0, self._depth - 1)
