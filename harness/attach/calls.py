"""The functions that a script's step calls, as replaceable attributes, for profiles and snapshots."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from threading import get_ident
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from harness.watch.training import Call, Replaced, Wrapped, Wrapper


def _no_compiler(_callback: object) -> None:
    """Without torch's compiler there is nothing to leave out."""


# Sets the function that compiles what this thread calls, and returns the one before; None compiles nothing.
_set_compiler: Callable[[Any], Any] = getattr(torch._C._dynamo.eval_frame, "set_eval_frame", _no_compiler)


class ScriptCalls:
    """The calls of a step, one attribute each. The patched entry points of torch go through them.

    Attributes:
        next_batch: the next batch of the loader's iterator given to `fetch`.
        forward: the model's output, of the call given to `call_model`.
        backward: computes gradients, by the call given to `compute_gradients`.
        tidy: called with the step's number at its end.
        compile: called before the script's first call of torch.compile.
        updating_thread: the thread on which a wrapped update is under way; None: there is none.
        update_returned: called when a wrapped update has returned.
        own_next_batch, own_forward, own_backward: those that nothing stands in for: then an entry point makes
            the call directly.
    """

    next_batch: Callable[[], Any]
    forward: Callable[[], Any]
    backward: Callable[[Any], None]
    tidy: Callable[[int], None]
    compile: Callable[[], None]

    def __init__(self) -> None:
        self._iterator: Iterator[Any] = iter(())
        self._model_call: Callable[[], Any] = _nothing
        self._gradient_call: Callable[[], Any] = _nothing
        self.next_batch = lambda: next(self._iterator)
        self.forward = lambda: self._model_call()
        self.backward = lambda _loss: self._gradient_call()
        self.tidy = _no_tidying
        self.compile = _nobody_waits
        self.updating_thread: int | None = None
        self.update_returned: Callable[[], None] = _nobody_waits
        self.own_next_batch, self.own_forward, self.own_backward = (
            self.next_batch,
            self.forward,
            self.backward,
        )

    @property
    def is_own(self) -> bool:
        """Return whether nothing stands in for the calls."""
        return (
            self.next_batch is self.own_next_batch
            and self.forward is self.own_forward
            and self.backward is self.own_backward
        )

    def fetch(self, iterator: Iterator[Any]) -> Any:
        """Return the next batch of `iterator`; raises StopIteration at its end."""
        self._iterator = iterator
        try:
            return self.next_batch()
        finally:
            self._iterator = iter(())  # It holds the loader.

    def call_model(self, run: Callable[[Callable[[], Any]], Any], call: Callable[[], Any]) -> Any:
        """Return the output of the model's `call`, made by `run`."""
        if self.forward is self.own_forward:
            return run(call)
        self._model_call = partial(run, call)
        try:
            return self.forward()
        finally:
            self._model_call = _nothing  # It holds the inputs.

    def compute_gradients(self, loss: Tensor | None, call: Callable[[], Any]) -> None:
        """Compute the gradients of `loss` by `call`."""
        self._gradient_call = call
        try:
            self.backward(loss)
        finally:
            self._gradient_call = _nothing  # It holds the loss.

    def wrap(self, name: str, wrapper: Wrapper, optimizers: Sequence[torch.optim.Optimizer]) -> Wrapped:
        """Let `wrapper(function)` stand in for a call, see `harness.watch.training.Training.wrap`."""
        if name == "update":
            return WrappedUpdates(self, optimizers, wrapper)
        return Replaced(self, name, wrapper) if hasattr(self, name) else NeverCalled()


class NeverCalled:
    """The stand-in for a call that a script's step does not make."""

    is_on = True

    def remove(self) -> None:
        """Do nothing."""


class WrappedUpdates:
    """The `step` of every optimizer, inside a wrapper."""

    def __init__(
        self, calls: ScriptCalls, optimizers: Sequence[torch.optim.Optimizer], wrapper: Wrapper
    ) -> None:
        self._replaced = [
            Replaced(one, "step", partial(_wrapped_step, calls, one, wrapper)) for one in optimizers
        ]

    @property
    def is_on(self) -> bool:
        """Return whether the next update of each optimizer calls the stand-in."""
        return all(replaced.is_on for replaced in self._replaced)

    def remove(self) -> None:
        """Restore every `step`. Idempotent."""
        for replaced in self._replaced:
            replaced.remove()


def _wrapped_step(calls: ScriptCalls, optimizer: torch.optim.Optimizer, wrapper: Wrapper, step: Call) -> Call:
    """A bound method, as schedulers expect of `optimizer.step`. The training step ends once it has returned:
    torch's profiler warns where it is stopped within the range that `step` records of itself."""

    @wraps(step)
    def wrapped_step(_self: torch.optim.Optimizer, /, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return step(*args, **kwargs)
        result: list[Any] = []
        # A function of the script that is compiled may call it: its compiler is to see the step alone.
        compiler = _set_compiler(None)

        def update() -> None:
            _set_compiler(compiler)
            try:
                result.append(step(*args, **kwargs))
            finally:
                _set_compiler(None)

        outer, calls.updating_thread = calls.updating_thread, get_ident()
        try:
            wrapper(update)()
            calls.updating_thread = outer
            calls.update_returned()
        finally:
            calls.updating_thread = outer
            _set_compiler(compiler)
        return result[0]

    return MethodType(wrapped_step, optimizer)


def _nothing() -> None:
    raise AssertionError("nothing was given to call")


def _nobody_waits() -> None:
    """Nothing is to be done."""


def _no_tidying(_step: int) -> None:
    """Nothing to tidy."""
