"""The interface of a watched training, and the one way to replace a function that a step calls."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from harness.analysis.oom.report import OomPhase
from harness.records.run import AmpMode

Call = Callable[..., Any]
# Makes the function that stands in for a call of a step out of the function that it stands in for.
Wrapper = Callable[[Call], Call]


class WatchSettings(Protocol):
    """The settings in effect that a watch reads; `harness.settings.Settings` has them all."""

    @property
    def max_steps(self) -> int | None:
        """The number of the last step."""
        ...

    @property
    def max_seconds(self) -> float | None:
        """Seconds of training after which the run ends."""
        ...

    @property
    def stall_after_s(self) -> float:
        """Seconds without a step after which a run is called stalled."""
        ...

    @property
    def memory_cap_bytes(self) -> int | None:
        """The cap on memory."""
        ...

    @property
    def batch_size(self) -> int:
        """Samples per micro-batch."""
        ...

    @property
    def grad_accumulation(self) -> int:
        """Micro-batches per step."""
        ...

    @property
    def amp(self) -> AmpMode:
        """Automatic mixed precision."""
        ...

    @property
    def activation_checkpointing(self) -> bool:
        """Return whether activations are computed again in the backward pass."""
        ...

    @property
    def compile(self) -> bool:
        """Return whether the model runs compiled."""
        ...

    @property
    def memory_history(self) -> bool:
        """Return whether allocations are followed all the time."""
        ...

    @property
    def hunt_leaks(self) -> bool:
        """Return whether a leak triggers a snapshot."""
        ...

    @property
    def profile_at(self) -> str | None:
        """Steps that are profiled, as text."""
        ...

    @property
    def measure_overhead(self) -> bool:
        """Return whether blocks of steps are left unobserved."""
        ...

    def model_dump(self, *, mode: str = ...) -> dict[str, Any]:
        """All settings by name, as values of JSON for the mode "json"."""
        ...


class Wrapped(Protocol):
    """A call of a step that something stands in for."""

    @property
    def is_on(self) -> bool:
        """Return whether the next step calls the stand-in; settings that take effect may end that."""
        ...

    def remove(self) -> None:
        """Put back what was called before, unless it was replaced meanwhile. Idempotent."""
        ...


class Training(Protocol):
    """A model in training: `harness.train.workload.Workload`, or what stands for a loop of somebody's own."""

    @property
    def model(self) -> nn.Module:
        """The model."""
        ...

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer; it may be replaced while the run goes on."""
        ...

    @property
    def loss(self) -> Tensor:
        """The loss of the newest step, without its graph."""
        ...

    @property
    def data(self) -> object:
        """The source of the batches; its tensors count as allocated before training."""
        ...

    @property
    def settings(self) -> WatchSettings:
        """The settings in effect."""
        ...

    def wrap(self, call: str, wrapper: Wrapper) -> Wrapped:
        """Let `wrapper(function)` stand in for a function that a step calls: "next_batch", "to_device",
        "forward", "backward", "update" (the optimizer's step) or "tidy"; where it computes between
        these, also "compile", called before its first call of torch.compile."""
        ...

    @property
    def computes_between_calls(self) -> bool:
        """Return whether a step computes outside of the functions that `wrap` knows, as a script does."""
        ...

    @property
    def has_compiled(self) -> bool:
        """Return whether a step may call functions that the code of the model or the script has compiled,
        whatever the setting `compile`."""
        ...

    @property
    def is_first_update(self) -> bool:
        """Return whether the newest update that began is known to be the first one of its optimizer, other
        than in the first step, where each is."""
        ...

    def worker_pids(self) -> list[int]:
        """The process ids of the workers that load data."""
        ...

    @property
    def oom_phase(self) -> OomPhase:
        """The phase that an error left when it ended the loop; BETWEEN where the loop handles those of steps
        itself."""
        ...

    @property
    def last_event_ns(self) -> int:
        """The time of the newest event of a step or of an evaluation, on the clock of the steps' times; 0
        where ends of steps are all that is known."""
        ...

    @property
    def calls_without_backward(self) -> int:
        """The calls of the model with gradients since the last backward pass, where those are far more than
        ever before one in this training; else 0."""
        ...


class Replaced:
    """An attribute that is a function, with another one in its place. The one way to stand in for a call."""

    def __init__(self, owner: object, name: str, wrapper: Wrapper) -> None:
        self._owner = owner
        self._name = name
        self._is_own = name in vars(owner)
        self._before: Call = getattr(owner, name)
        self._ours = wrapper(self._before)
        setattr(owner, name, self._ours)

    @property
    def is_on(self) -> bool:
        """Return whether it is still called: not removed, not replaced by somebody else."""
        return getattr(self._owner, self._name) is self._ours

    def remove(self) -> None:
        """Put back the function before, unless another one is in place by now. Idempotent."""
        if not self.is_on:
            return
        if self._is_own:
            setattr(self._owner, self._name, self._before)
        else:
            delattr(self._owner, self._name)
