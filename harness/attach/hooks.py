"""Torch's entry points, patched so that a script's step can be followed.

Patched are `torch.compile`, `DataLoader.__iter__` and that of its subclasses, `DataLoader.__len__`,
`DataLoader._get_iterator`, `torch.autograd.backward`, `Module.zero_grad`, `Optimizer.__init__`,
`GradScaler.scale` and `step`, what `harness.attach.graphs` names, and the `__call__` of all modules or, once
the models are known, of their classes: an instance would carry a hook of ours into its copies and pickles.
Optimizer steps have global hooks of torch's own.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial, wraps
from typing import Any, Protocol

import torch
from torch import nn
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.hooks import RemovableHandle

from harness.attach.autocast import RegionState, following_regions
from harness.attach.discovery import wrapped_by
from harness.attach.entries import StepEntries, UpdateHook
from harness.attach.graphs import CapturedGraphs
from harness.attach.passes import OpenIterator
from harness.closing import Closing
from harness.watch.compiler import has_compiled
from harness.watch.training import Replaced


class StepEvents(Protocol):
    """The receiver of rare events; called on any thread. `follows` is checked before every other call."""

    def follows(self) -> bool:
        """Return whether the calling thread is followed."""
        ...

    def loader_opened(self, loader: DataLoader[Any], open_iterator: OpenIterator) -> Iterator[Any]:
        """Return the iterator of a loader, from `open_iterator`."""
        ...

    def loader_opened_itself(self, loader: DataLoader[Any], batches: Iterator[Any]) -> Iterator[Any]:
        """Return the iterator of a loader that has opened `batches` in a way of its own."""
        ...

    def model_called(self, model: nn.Module, inputs: tuple[Any, ...]) -> None:
        """A module is called from outside of any other module, while the models are not known yet."""
        ...

    def call_model(self, model: nn.Module, call: Callable[[], Any]) -> Any:
        """Return the output of a module that is called from outside, by `call`."""
        ...

    def model_returned(self, model: nn.Module) -> None:
        """A module that was called from outside has returned."""
        ...

    def gradients_cleared(self) -> None:
        """The gradients of a model were cleared by its `zero_grad`."""
        ...

    def region_entered(self, region: torch.autocast) -> RegionState | None:
        """Return the state for an autocast region that is about to be entered; None: its own."""
        ...

    def loss_scaled(self, loss: Any, scaled: Any) -> None:
        """A GradScaler scaled a loss."""
        ...

    def optimizer_created(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer was created."""
        ...

    def scaler_stepped(self, optimizer: torch.optim.Optimizer, call: Callable[[], Any]) -> Any:
        """Return the result of a GradScaler's step, `call`, which may skip the optimizer's."""
        ...


class _Nesting(threading.local):
    """Calls of modules and openings of loaders that are under way in the current thread: until training has
    begun, every thread is followed."""

    calls = 0
    openings = 0


class Hooks(Closing):
    """The patches, between `__init__` and `close`."""

    def __init__(self, events: StepEvents, entries: StepEntries) -> None:
        """`entries` are the functions in place of those that every step calls."""
        self._events = events
        self._entries = entries
        self._stack = ExitStack()
        self._discovery = ExitStack()
        self._classes: set[type[nn.Module]] = set()
        # Those that are followed at `nn.Module` itself.
        self._classes_at_base: set[type[nn.Module]] = set()
        self._stand_ins: set[Callable[..., Any]] = set()
        self._nesting = _Nesting()
        self._replace(DataLoader, "__iter__", self._iter)
        self._replace(DataLoader, "_get_iterator", self._open_alone)
        self._replace(DataLoader, "__len__", self._len)
        self._follow_subclasses(DataLoader)
        self._replace(torch.autograd, "backward", entries.wrap_backward)
        self._replace(torch, "compile", self._compile)
        self._replace(torch.autocast, "__enter__", partial(following_regions, events))
        self._replace(nn.Module, "zero_grad", self._zero_grad)
        self._replace(torch.optim.Optimizer, "__init__", self._init_optimizer)
        self._replace(torch.amp.GradScaler, "scale", self._scale)
        self._replace(torch.amp.GradScaler, "step", self._scaler_step)
        self._stack.enter_context(CapturedGraphs(entries))
        begin, end = entries.begin_update(), entries.end_update()
        self._updates: dict[RemovableHandle, UpdateHook] = {
            register_optimizer_step_pre_hook(begin): begin,
            register_optimizer_step_post_hook(end): end,
        }
        for handle in self._updates:
            self._stack.callback(handle.remove)
        self._is_opaque = False
        if has_compiled():
            self._hide_from_compiler()
        # Not torch's global hooks of modules: they make `torch.compile` warn, and compile again without them.
        self._discovery.callback(Replaced(nn.Module, "__call__", self._call_any).remove)

    def _compile(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def compile_function(*args: Any, **kwargs: Any) -> Any:
            self._entries.guard.run(self._hide_from_compiler)
            return original(*args, **kwargs)

        return compile_function

    def _hide_from_compiler(self) -> None:
        """Have torch.compile leave the watch alone from now on. A compiled function that computes gradients
        or calls an optimizer's step would else trace it, and compile each of its functions. Not from the
        beginning, as a call of a function that is hidden takes longer."""
        if self._is_opaque:
            return
        self._is_opaque = True
        self._entries.compiler_called()
        self._replace(torch.autograd, "backward", torch.compiler.disable)
        for handle, hook in self._updates.items():
            # In its place: one of the script's own hooks may be the one that compiles.
            if (hooks := handle.hooks_dict_ref()) is not None:
                hooks[handle.id] = torch.compiler.disable(hook)

    def follow(self, models: list[nn.Module]) -> None:
        """Follow the calls of `models` from now on, and no longer those of every module. Those of what they
        wrap are noticed as calls that do not train: a script may draw samples from it."""
        self._discovery.close()
        self._entries.add_models(models)
        wrapped = [] if self._is_opaque else wrapped_by(models)  # Its compiler would trace their stand-ins.
        kinds = {type(model) for model in (*models, *wrapped)} - self._classes
        for kind in sorted(kinds, key=lambda kind: len(kind.__mro__)):  # Bases come first.
            self._classes.add(kind)
            if self._is_opaque and kind.__call__ is nn.Module.__call__:
                self._follow_at_base(kind)
            elif kind.__call__ not in self._stand_ins:
                self._replace(kind, "__call__", self._entries.wrap_call)
                self._stand_ins.add(kind.__call__)

    def _follow_at_base(self, kind: type[nn.Module]) -> None:
        """Follow the calls of a class at `nn.Module`. A function that torch.compile compiled while all calls
        were followed there is compiled again, by torch 2.15, once the class has a `__call__` of its own."""
        self._classes_at_base.add(kind)
        if len(self._classes_at_base) == 1:
            self._replace(nn.Module, "__call__", self._call_followed)

    def _call_followed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stand_in, kinds = self._entries.wrap_call(original), self._classes_at_base

        @wraps(original)
        def call(module: nn.Module, /, *inputs: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling() or type(module) in kinds:
                return stand_in(module, *inputs, **kwargs)
            return original(module, *inputs, **kwargs)

        return call

    def close(self) -> None:
        """Restore everything. Idempotent."""
        self._is_opaque = True  # A function of ours that the script has kept changes nothing any more.
        self._discovery.close()
        self._stack.close()

    def _replace(self, owner: object, name: str, wrapper: Callable[[Any], Any]) -> None:
        self._stack.callback(Replaced(owner, name, wrapper).remove)

    def _iter(self, original: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
        @wraps(original)
        def open_loader(loader: DataLoader[Any]) -> Iterator[Any]:
            if not self._events.follows():
                return original(loader)
            return self._events.loader_opened(loader, partial(self._open, original))

        return open_loader

    def _len(self, original: Callable[[Any], int]) -> Callable[[Any], int]:
        @wraps(original)
        def length(loader: DataLoader[Any]) -> int:
            changed = self._entries.changed_length(loader)
            return original(loader) if changed is None else changed

        return length

    def _open(self, original: Callable[[Any], Iterator[Any]], loader: DataLoader[Any]) -> Iterator[Any]:
        self._nesting.openings += 1
        try:
            return original(loader)
        finally:
            self._nesting.openings -= 1

    def _open_alone(self, original: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
        @wraps(original)
        def get_iterator(loader: DataLoader[Any]) -> Iterator[Any]:
            batches = original(loader)
            if self._nesting.openings or not self._events.follows():
                return batches
            return self._events.loader_opened_itself(loader, batches)

        return get_iterator

    def _follow_subclasses(self, kind: type[DataLoader[Any]]) -> None:
        """Follow the subclasses of a loader, now and when they are defined: some make iterators of torch's in
        ways of their own, as torchdata's StatefulDataLoader."""

        def defined(subclass: type[DataLoader[Any]], /, **arguments: Any) -> None:
            super(kind, subclass).__init_subclass__(**arguments)
            self._entries.guard.run(self._follow_subclass, subclass)

        kind.__init_subclass__ = classmethod(defined)  # type: ignore[assignment]
        self._stack.callback(delattr, kind, "__init_subclass__")
        waiting = [kind]
        while waiting:
            subclasses = waiting.pop().__subclasses__()
            waiting += subclasses
            for subclass in subclasses:
                self._follow_subclass(subclass)

    def _follow_subclass(self, kind: type[DataLoader[Any]]) -> None:
        if "__iter__" in vars(kind):
            self._replace(kind, "__iter__", self._iter_of_subclass)

    def _iter_of_subclass(self, original: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
        @wraps(original)
        def open_loader(loader: DataLoader[Any]) -> Iterator[Any]:
            batches = original(loader)
            if isinstance(batches, _BaseDataLoaderIter) and self._events.follows():
                return self._events.loader_opened_itself(loader, batches)
            return batches

        return open_loader

    def _call_any(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def call(module: nn.Module, /, *inputs: Any, **kwargs: Any) -> Any:
            if is_compiling():  # As torch.compile traces `nn.Module.__call__`, whose lines it cannot.
                return module._call_impl(*inputs, **kwargs)
            if not self._events.follows():
                return original(module, *inputs, **kwargs)
            self._nesting.calls += 1
            try:
                if self._nesting.calls > 1:
                    return original(module, *inputs, **kwargs)
                self._entries.caught.early_call_began()
                self._events.model_called(module, inputs or tuple(kwargs.values()))
                output = self._events.call_model(module, partial(original, module, *inputs, **kwargs))
                self._events.model_returned(module)
                return output
            except Exception as error:  # Of memory also with a library's own class. Raised again.
                if self._nesting.calls == 1:
                    self._entries.caught.early_call_failed(error)
                raise
            finally:
                self._nesting.calls -= 1

        return call

    def _zero_grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def zero_grad(module: nn.Module, /, *args: Any, **kwargs: Any) -> None:
            original(module, *args, **kwargs)
            if not is_compiling() and self._events.follows():
                self._events.gradients_cleared()

        return zero_grad

    def _init_optimizer(self, original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)
        def init(optimizer: torch.optim.Optimizer, /, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            if self._events.follows():
                self._events.optimizer_created(optimizer)

        return init

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
            scaler: torch.amp.GradScaler, /, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any
        ) -> Any:
            call = partial(original, scaler, optimizer, *args, **kwargs)
            return self._events.scaler_stepped(optimizer, call) if self._events.follows() else call()

        return step
