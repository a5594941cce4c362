"""Ranges around every phase of a step and every module, for a profile.

PyTorch's `with_modules` supports only TorchScript modules.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.profiler import record_function
from torch.utils.hooks import RemovableHandle

from harness.profiling.events import MODULE, PHASE
from harness.records.run import Phase

# The functions that a step calls, and their phases.
_CALLED = {
    "next_batch": Phase.DATA_WAIT,
    "to_device": Phase.H2D,
    "forward": Phase.FORWARD,
    "backward": Phase.BACKWARD,
    "update": Phase.OPTIMIZER,
}
# A range that takes 1 µs instead of 10: there are hundreds per step.
_module_range: Callable[[str], Any] = getattr(torch._C._profiler, "_RecordFunctionFast", record_function)


class RangedWorkload(Protocol):
    """The training, see `harness.watch.training.Training`."""

    @property
    def model(self) -> nn.Module:
        """The model."""
        ...

    def wrap(self, call: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> "Removable":
        """Let `wrapper(function)` replace a function that a step calls."""
        ...


class Removable(Protocol):
    """A replaced function of a step."""

    def remove(self) -> None:
        """Restore the original function, unless it was replaced meanwhile. Idempotent."""
        ...


class Ranges:
    """The ranges, between `start` and `stop`. `is_compiled`: modules do not run separately."""

    def __init__(self, training: RangedWorkload, is_compiled: bool) -> None:
        self._training = training
        self._is_compiled = is_compiled
        self._paths = {module: path for path, module in training.model.named_modules()}
        self._open = threading.local()
        # The ranges of a phase that are open, the innermost last.
        self._phases: list[Any] = []
        self._handles: list[RemovableHandle] = []
        self._wrapped: list[Removable] = []

    def classes(self) -> dict[str, str]:
        """Return the class of every module, by path."""
        return {path: type(module).__name__ for module, path in self._paths.items()}

    def start(self) -> None:
        """Add the ranges, before a step."""
        wrap = self._training.wrap
        self._wrapped = [wrap(call, partial(self._ranged, phase)) for call, phase in _CALLED.items()]
        if not self._is_compiled:
            self._handles = [
                register_module_forward_pre_hook(self._enter),
                register_module_forward_hook(self._leave, always_call=True),
            ]

    def stop(self) -> None:
        """Remove the ranges; functions that were replaced meanwhile stay. Idempotent. Those that are open
        end: if another profiler were on when they do, that would write into the freed memory of this one."""
        while stack := self._stack():
            stack.pop()[1].__exit__(None, None, None)
        while self._phases:
            self._phases.pop().__exit__(None, None, None)
        for wrapped in self._wrapped:
            wrapped.remove()
        self._wrapped = []
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _ranged(self, phase: Phase, call: Callable[..., Any]) -> Callable[..., Any]:
        name = f"{PHASE}{phase.value}"
        is_whole = self._is_compiled and phase is Phase.FORWARD

        def inside(*args: Any, **kwargs: Any) -> Any:
            with self._phase(record_function(name)):
                if not is_whole:
                    return call(*args, **kwargs)
                with self._phase(_module_range(MODULE)):
                    return call(*args, **kwargs)

        return inside

    @contextmanager
    def _phase(self, opened: Any) -> Iterator[None]:
        opened.__enter__()
        self._phases.append(opened)
        try:
            yield
        finally:
            if opened in self._phases:  # Else `stop` has ended it.
                self._phases.remove(opened)
                opened.__exit__(None, None, None)

    def _enter(self, module: nn.Module, _inputs: Any) -> None:
        path = self._paths.get(module)
        if path is None:
            return
        opened = _module_range(f"{MODULE}{path}")
        opened.__enter__()
        self._stack().append((module, opened))

    def _leave(self, module: nn.Module, _inputs: Any, _output: Any) -> None:
        stack = self._stack()
        if stack and stack[-1][0] is module:
            stack.pop()[1].__exit__(None, None, None)

    def _stack(self) -> list[tuple[nn.Module, Any]]:
        """Return the open modules of this thread: checkpointed modules run again in autograd's thread."""
        try:
            stack: list[tuple[nn.Module, Any]] = self._open.stack
        except AttributeError:
            stack = self._open.stack = []
        return stack
