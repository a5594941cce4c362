"""The least that following a script's step without its help can cost: stand-ins for the entry points of torch
of each step, which only append the time, and a row per step for a thread that writes it to SQLite."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from harness.watch.training import Replaced
from tests.bench.floor import Floor


class ScriptFloor:
    """Follows the steps of one model."""

    def __init__(self, model: nn.Module, floor: Floor) -> None:
        """`floor` receives the rows."""
        self._kind = type(model)
        self._put = floor.put
        self._times_ns: list[int] = []
        self._loss = 0.0
        self._step = 0
        self._stack = ExitStack()
        self._patch()

    @contextmanager
    def left(self) -> Iterator[None]:
        """Until the end of the context, torch is as without the stand-ins."""
        self._stack.close()
        try:
            yield
        finally:
            self._times_ns.clear()
            self._patch()

    def batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Return the batches, with the time before and after each."""
        return _TimedBatches(batches, self._times_ns)

    def _patch(self) -> None:
        self._stack.callback(Replaced(self._kind, "__call__", self._wrap_call).remove)
        self._stack.callback(Replaced(torch.autograd, "backward", self._wrap_backward).remove)
        for handle in (
            register_optimizer_step_pre_hook(self._update_began),
            register_optimizer_step_post_hook(self._update_ended),
        ):
            self._stack.callback(handle.remove)

    def _wrap_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        times_ns = self._times_ns

        def call(model: nn.Module, inputs: Any) -> Any:
            times_ns.append(perf_counter_ns())
            output = original(model, inputs)
            times_ns.append(perf_counter_ns())
            return output

        return call

    def _wrap_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        times_ns = self._times_ns

        def backward(loss: Tensor, *args: Any, **kwargs: Any) -> None:
            self._loss = loss.item()
            times_ns.append(perf_counter_ns())
            original(loss, *args, **kwargs)
            times_ns.append(perf_counter_ns())

        return backward

    def _update_began(self, _optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        self._times_ns.append(perf_counter_ns())

    def _update_ended(self, _optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        times_ns = self._times_ns
        self._step += 1
        row = (self._step, *times_ns, perf_counter_ns(), self._loss, 0.0, 0.0, 0.0)
        times_ns.clear()
        self._put(row)


class _TimedBatches:
    def __init__(self, batches: Iterator[Any], times_ns: list[int]) -> None:
        self._batches = batches
        self._times_ns = times_ns

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        times_ns = self._times_ns
        times_ns.append(perf_counter_ns())
        batch = next(self._batches)
        times_ns.append(perf_counter_ns())
        return batch
