"""A script's training as the watch sees it, see `harness.watch.training.Training`."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from harness.analysis.oom.report import OomPhase
from harness.attach.calls import ScriptCalls
from harness.attach.discovery import ScriptOptimizers
from harness.settings import Settings
from harness.watch.training import Wrapped, Wrapper


class ScriptTraining:
    """The models and optimizers of a script, with the settings in effect.

    Attributes:
        model: the model, or a container of several.
        optimizers: the optimizers that were found.
        loss: the last loss of the newest step, on its device and without graph.
        settings: values of the settings that this run has; the rest have their default and are not recorded.
        loaders: the loaders that were opened.
        iterators: the iterators of those with workers.
        read_phase: returns the phase of the step under way.
        samples_per_step, tokens_per_step: those of the newest step; 0 and None while unknown.
        calls: the functions that a step calls.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        settings: Settings,
        device: torch.device,
        calls: ScriptCalls,
    ) -> None:
        self.model = model
        self.optimizers = tuple(optimizers)
        self.settings = settings
        self.calls = calls
        self.loss: Tensor = torch.full((), float("nan"), device=device)
        self.loaders: Iterable[DataLoader[Any]] = ()
        self.iterators: Iterable[Any] = ()
        self.read_phase: Callable[[], OomPhase] = lambda: OomPhase.BETWEEN
        self.samples_per_step = 0
        self.tokens_per_step: int | None = None

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer, or all of them as one."""
        if len(self.optimizers) == 1:
            return self.optimizers[0]
        return ScriptOptimizers(self.optimizers)  # type: ignore[return-value]  # has what a watch reads

    @property
    def data(self) -> object:
        """The datasets of the loaders."""
        return [loader.dataset for loader in list(self.loaders)]

    def wrap(self, call: str, wrapper: Wrapper) -> Wrapped:
        """Let `wrapper(function)` stand in for a call of a step."""
        return self.calls.wrap(call, wrapper, self.optimizers)

    def worker_pids(self) -> list[int]:
        """Return the process ids of the workers that load data."""
        workers = [worker for one in list(self.iterators) for worker in getattr(one, "_workers", ())]
        return [worker.pid for worker in workers if worker.pid is not None]

    @property
    def oom_phase(self) -> OomPhase:
        """The phase of the step under way."""
        return self.read_phase()
