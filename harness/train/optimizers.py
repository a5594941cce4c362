"""The optimizer of a workload, by its settings."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from harness.settings import Settings
from harness.settings.declaration import Optimizer, OptimizerImpl

_OPTIMIZERS: Mapping[Optimizer, type[torch.optim.Optimizer]] = {
    Optimizer.SGD: torch.optim.SGD,
    Optimizer.ADAM: torch.optim.Adam,
    Optimizer.ADAMW: torch.optim.AdamW,
}
_IMPLEMENTATIONS: Mapping[OptimizerImpl, Mapping[str, bool | None]] = {
    OptimizerImpl.AUTO: {"foreach": None, "fused": None},
    OptimizerImpl.LOOP: {"foreach": False, "fused": False},
    OptimizerImpl.FOREACH: {"foreach": True, "fused": False},
    OptimizerImpl.FUSED: {"foreach": False, "fused": True},
}


def build_optimizer(settings: Settings, model: nn.Module) -> torch.optim.Optimizer:
    """Return a new optimizer of `model`."""
    implementation: Any = _IMPLEMENTATIONS[settings.optimizer_impl]
    make: Any = _OPTIMIZERS[settings.optimizer]
    optimizer: torch.optim.Optimizer = make(model.parameters(), lr=settings.learning_rate, **implementation)
    return optimizer


def rebuilt_optimizer(
    old: torch.optim.Optimizer, settings: Settings, model: nn.Module
) -> torch.optim.Optimizer:
    """Return an optimizer with the kernels of `settings` and the state of `old`."""
    state = old.state_dict()
    for group in state["param_groups"]:
        group.update(_IMPLEMENTATIONS[settings.optimizer_impl])
    rebuilt = build_optimizer(settings, model)
    rebuilt.load_state_dict(state)
    if settings.optimizer_impl is not OptimizerImpl.FUSED:
        # Fused kernels count steps on the device; left there, the others would read one value per weight.
        for state in rebuilt.state.values():
            if "step" in state:
                state["step"] = state["step"].cpu()
    lay_out_like_weights(rebuilt)
    return rebuilt


def lay_out_like_weights(optimizer: torch.optim.Optimizer) -> None:
    """Give each weight's moments the weight's own memory format: fused kernels walk them side by side, by
    address, and would silently mix up values that are laid out differently."""
    for weight, state in optimizer.state.items():
        for name, value in state.items():
            if (
                isinstance(value, Tensor)
                and value.shape == weight.shape
                and value.stride() != weight.stride()
            ):
                state[name] = torch.empty_like(weight).copy_(value)
