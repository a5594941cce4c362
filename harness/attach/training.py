"""A script's training as the watch sees it, see `harness.watch.training.Training`."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from harness.analysis.oom.report import OomPhase
from harness.attach.calls import ScriptCalls
from harness.attach.discovery import (
    ScriptModels,
    ScriptOptimizers,
    as_one_model,
    find_models,
    owned_parameters,
    owns,
)
from harness.attach.feeding import Feeding
from harness.settings import Settings
from harness.watch.training import Wrapped, Wrapper


class ScriptTraining:
    """The models and optimizers of a script, with the settings in effect. The script alone keeps them alive:
    one that trains several models in a row lets go of those before.

    Attributes:
        references: references to the optimizers, by their id.
        optimizer_ended: called with the id of an optimizer that is no more, on any thread.
        loss: the last loss of the newest step, on its device and without graph.
        settings: values of the settings that this run has; the rest have their default and are not recorded.
        loaders: the loaders that were opened.
        iterators: the iterators of those with workers.
        read_phase: returns the phase of the step under way.
        read_calls: returns `calls_without_backward`.
        read_last_event: returns `last_event_ns`.
        samples_per_step, tokens_per_step: those of the newest step; 0 and None while unknown.
        calls: the functions that a step calls.
        has_compiled: whether torch.compile was called in this process.
        updating_id: the id of the optimizer that has begun the newest update, unless it was that of a plain
            step; None before the first one.
        has_updated: returns whether the optimizer with an id has completed an update.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        settings: Settings,
        calls: ScriptCalls,
    ) -> None:
        self._models: list[ReferenceType[nn.Module]] = []
        self.references: dict[int, ReferenceType[torch.optim.Optimizer]] = {}
        self.optimizer_ended: Callable[[int], None] = _ignore
        self.add_models(model.children() if isinstance(model, ScriptModels) else [model])
        for optimizer in optimizers:
            self.add_optimizer(optimizer)
        self.settings = settings
        self.calls = calls
        self.loss: Tensor = torch.full((), float("nan"), device="cpu")
        self.loaders: Iterable[DataLoader[Any]] = ()
        self.iterators: Iterable[Any] = ()
        self.read_phase: Callable[[], OomPhase] = lambda: OomPhase.BETWEEN
        self.read_calls: Callable[[], int] = int
        self.read_last_event: Callable[[], int] = int
        self.samples_per_step = 0
        self.tokens_per_step: int | None = None
        self.has_compiled = False
        self.updating_id: int | None = None
        self.has_updated: Callable[[int], bool] = lambda _key: True

    @property
    def model(self) -> nn.Module:
        """The model, or a container of several."""
        return as_one_model(self.models)

    @property
    def models(self) -> list[nn.Module]:
        """The models that still exist."""
        return [model for reference in self._models if (model := reference()) is not None]

    @property
    def optimizers(self) -> tuple[torch.optim.Optimizer, ...]:
        """The optimizers that were found and still exist."""
        references = list(self.references.values())
        return tuple(one for reference in references if (one := reference()) is not None)

    def add_models(self, models: Iterable[nn.Module]) -> None:
        """Add `models`, unless they are there."""
        there = [reference() for reference in self._models]
        self._models += [ref(model) for model in models if not any(model is one for one in there)]

    def find_models(self) -> None:
        """Add the models of optimizers that are new, and were not searched for yet."""
        self.add_models(find_models(owned_parameters(self.optimizers)))

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> bool:
        """Add an optimizer, unless it is there; return whether it was added."""
        key = id(optimizer)
        if key in self.references:
            return False
        self.references[key] = ref(optimizer, lambda _reference: self._forget(key))
        return True

    def partners(self, feeding: Feeding, key: int) -> set[int]:
        """Return the ids of the optimizers that may step in the iteration which the one with the id `key` has
        begun: those of further parameters, if a loader feeds it, so that the next batch shows its end; else
        those that have gradients of other parameters of its model, and none of its own."""
        first = self.references[key]()
        own = set() if first is None else owned_parameters([first])
        owned = {id(other): owned_parameters([other]) for other in self.optimizers}
        if feeding.recent:
            return {other for other, ids in owned.items() if not ids <= own}
        models = [model for model in self.models if owns(model, own)]
        learning = {id(one) for model in models for one in model.parameters() if one.grad is not None}
        return {other for other, ids in owned.items() if own.isdisjoint(ids) and not learning.isdisjoint(ids)}

    def _forget(self, key: int) -> None:
        self.references.pop(key, None)
        self.optimizer_ended(key)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer, or all of them as one."""
        optimizers = self.optimizers
        if len(optimizers) == 1:
            return optimizers[0]
        return ScriptOptimizers(optimizers)  # type: ignore[return-value]  # has what a watch reads

    @property
    def data(self) -> object:
        """The datasets of the loaders."""
        return [loader.dataset for loader in list(self.loaders)]

    def wrap(self, call: str, wrapper: Wrapper) -> Wrapped:
        """Let `wrapper(function)` stand in for a call of a step."""
        return self.calls.wrap(call, wrapper, self.optimizers)

    @property
    def computes_between_calls(self) -> bool:
        """Return True: between the calls runs the script's own code."""
        return True

    @property
    def is_first_update(self) -> bool:
        """Return whether the newest update that began is the first one of its optimizer."""
        return self.updating_id is not None and not self.has_updated(self.updating_id)

    def worker_pids(self) -> list[int]:
        """Return the process ids of the workers that load data."""
        workers = [worker for one in list(self.iterators) for worker in getattr(one, "_workers", ())]
        return [worker.pid for worker in workers if worker.pid is not None]

    @property
    def oom_phase(self) -> OomPhase:
        """The phase of the step under way."""
        return self.read_phase()

    @property
    def last_event_ns(self) -> int:
        """The time of the last call, or return, of a loader, a model, a backward pass or an optimizer."""
        return self.read_last_event()

    @property
    def calls_without_backward(self) -> int:
        """The calls with gradients since the last backward pass, see `StepTracker.calls_without_backward`."""
        return self.read_calls()


def _ignore(_key: int) -> None:
    """Nobody wants to know."""
