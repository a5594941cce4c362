"""The entry points of a followed step: the functions that stand in for those of torch that every step calls.

They are flat: between two operations of a training the processor's caches hold nothing of this code, and
every Python call takes several times as long as in a tight loop. So an entry checks its thread, calls the
observation or its tracker directly, and handles a failure itself, as `ScriptGuard.run` does everywhere else.
What is rare (an event before the training or on another thread, a capture, a switch) leaves for a function of
its own.

The events of a plain step, in order: `next_batch`, `call` of the model, `backward`, `update_began`, and
`update_ended`, which ends the step.
"""

from collections.abc import Callable, Iterable
from functools import partial, wraps
from threading import get_ident
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from harness.attach.batches import samples_of
from harness.attach.guard import ScriptGuard
from harness.attach.observation import Observation
from harness.attach.passes import LoaderPass

_is_grad_enabled = torch.is_grad_enabled


class EarlyEvents(Protocol):
    """The receiver of the events before the training has begun, and of those on other threads."""

    def early_batch(self, batches: LoaderPass) -> Any:
        """Return the next batch of `batches`; raises StopIteration at its end."""
        ...

    def early_gradients(self) -> None:
        """Gradients are about to be computed; on any thread."""
        ...

    def early_update(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to step; on any thread."""
        ...


class StepEntries:
    """The entry points of one session.

    Attributes:
        observation: receives the events once the training has begun.
    """

    def __init__(self, guard: ScriptGuard, early: EarlyEvents) -> None:
        self.observation: Observation | None = None
        self._guard = guard
        self._early = early
        self._model_ids: set[int] = set()

    def add_models(self, models: Iterable[nn.Module]) -> None:
        """Follow the calls of `models` too."""
        self._model_ids.update(map(id, models))

    def next_batch(self, batches: LoaderPass) -> Any:
        """Return the next batch of a loader; raises StopIteration at its end."""
        observation, guard = self.observation, self._guard
        if observation is None or get_ident() != guard.thread:
            return self._early.early_batch(batches)
        calls, tracker, cycle = observation.calls, observation.tracker, observation.cycle
        is_plain = not (observation.is_loading or cycle.done or observation.is_discovering)
        try:
            if is_plain:
                cycle.has_batch = True
                tracker.batch_requested()
            else:
                observation.batch_requested()
        except Exception as error:  # noqa: BLE001  # see the module's docstring
            guard.failed(error)
        try:
            batch = next(batches) if calls.next_batch is calls.own_next_batch else calls.fetch(batches)
        except BaseException:
            observation.loaders.ended(batches)
            guard.run(observation.batch_missed)
            raise
        loaders = observation.loaders
        if loaders.recent or loaders.has_evaluated:
            loaders.delivered(batches)
        else:
            loaders.recent.append(batches)
        try:
            if guard.is_on and not observation.is_loading:
                tracker.batch_arrived(samples_of(batch))
                observation.under_way.has_begun = True
        except Exception as error:  # noqa: BLE001
            guard.failed(error)
        return batch

    def wrap_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the stand-in for the `__call__` of a class of models."""
        is_plain = original is nn.Module._wrapped_call_impl
        guard, model_ids = self._guard, self._model_ids

        @wraps(original)
        def call(model: nn.Module, *inputs: Any, **kwargs: Any) -> Any:
            if is_compiling():  # In a function that is compiled nothing of ours may be traced.
                return model._call_impl(*inputs, **kwargs) if is_plain else original(model, *inputs, **kwargs)
            observation = self.observation
            if observation is None or get_ident() != guard.thread or id(model) not in model_ids:
                return original(model, *inputs, **kwargs)
            try:
                observation.forward_began(model, inputs or tuple(kwargs.values()))
            except Exception as error:  # noqa: BLE001
                guard.failed(error)
            autocast, calls = observation.autocast, observation.calls
            is_simple = autocast.wrapper is None and calls.forward is calls.own_forward
            if is_simple and not autocast.is_calling:
                autocast.is_calling = True
                try:
                    output = original(model, *inputs, **kwargs)
                finally:
                    autocast.is_calling = False
            else:
                output = observation.run_forward(partial(original, model, *inputs, **kwargs))
            try:
                if guard.is_on:
                    observation.tracker.forward_ended(has_gradients=_is_grad_enabled())
            except Exception as error:  # noqa: BLE001
                guard.failed(error)
            return output

        return call

    def wrap_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the stand-in for `torch.autograd.backward`."""
        guard = self._guard

        @wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if self.observation is None:
                self._early.early_gradients()
            observation = self.observation
            if observation is None or get_ident() != guard.thread:
                return original(tensors, *args, **kwargs)
            loss = tensors if isinstance(tensors, Tensor) else _first_of(tensors)
            calls = observation.calls
            try:
                observation.backward_began(loss)
            except Exception as error:  # noqa: BLE001
                guard.failed(error)
            try:
                if calls.backward is calls.own_backward:
                    original(tensors, *args, **kwargs)
                else:
                    calls.compute_gradients(loss, partial(original, tensors, *args, **kwargs))
            except BaseException:
                guard.run(observation.tracker.backward_failed)
                raise
            try:
                if guard.is_on:
                    if (manual := observation.manual) is not None:
                        manual.has_gradients = True
                    observation.tracker.backward_ended()
            except Exception as error:  # noqa: BLE001
                guard.failed(error)
            return None

        return backward

    def update_began(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        """An optimizer is about to step, at the latest with this the training begins."""
        thread = get_ident()
        if self.observation is None or thread != self._guard.thread:
            self._early.early_update(optimizer)
        observation = self.observation
        if observation is None or thread != self._guard.thread:
            return
        try:
            rates = observation.rates
            is_plain = rates.factor == 1.0 and not rates.scaled and observation.manual is None
            if is_plain and id(optimizer) in observation.training.references:
                observation.tracker.update_began()
            else:
                observation.update_began(optimizer)
        except Exception as error:  # noqa: BLE001
            self._guard.failed(error)

    def update_ended(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        """An optimizer has stepped. Raises ScriptStopped where the run is to end."""
        observation = self.observation
        if observation is None or get_ident() != self._guard.thread:
            return
        try:
            observation.update_ended(optimizer)
        except Exception as error:  # noqa: BLE001
            self._guard.failed(error)


def _first_of(tensors: Iterable[Any]) -> Tensor | None:
    loss = next(iter(tensors), None)
    return loss if isinstance(loss, Tensor) else None
