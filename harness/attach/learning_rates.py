"""The learning rates of a script's optimizers, multiplied while an optimizer steps."""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class _Scaled(NamedTuple):
    optimizer: torch.optim.Optimizer
    group: dict[str, Any]
    own: Any
    scaled: Any


class LearningRateFactor:
    """Multiplies `lr` of every parameter group for the duration of a step, so that schedulers, logs and
    checkpoints of the script read its own values. Used on the training thread.

    Attributes:
        factor: the factor in effect; 1 leaves everything alone.
        scaled: the rates that are multiplied at the moment.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        self.scaled: list[_Scaled] = []

    @property
    def is_own(self) -> bool:
        """Return whether the script's own rates are in effect."""
        return self.factor == 1.0 and not self.scaled

    def update_began(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to step. One that steps within another one, with the same parameters, is part
        of it if it has taken its rate over; one that did not end its previous step failed in it."""
        if self.scaled:
            self._restore(optimizer)
        if self.factor == 1.0:
            return
        scaled_rates = {id(weight): one.scaled for one in self.scaled for weight in one.group["params"]}
        for group in optimizer.param_groups:
            if has_rate(group) and not (scaled_rates and _is_within(group, scaled_rates)):
                own = group["lr"]
                group["lr"] = scaled = own * self.factor
                self.scaled.append(_Scaled(optimizer, group, own, scaled))

    def update_ended(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has stepped."""
        if self.scaled:
            self._restore(optimizer)

    def restore(self) -> None:
        """Restore the script's learning rates, after a step that failed. Idempotent."""
        if self.scaled:
            self._restore(None)

    def _restore(self, optimizer: torch.optim.Optimizer | None) -> None:
        rest = []
        for one in self.scaled:
            if optimizer is not None and one.optimizer is not optimizer:
                rest.append(one)
            elif one.group.get("lr") is one.scaled:  # The script may have set another one meanwhile.
                one.group["lr"] = one.own
        self.scaled = rest


def _is_within(group: dict[str, Any], scaled_rates: dict[int, Any]) -> bool:
    """Return whether a group has taken over the rate of one around it, which has a parameter in common."""
    keys = (id(weight) for weight in group["params"])
    return any(key in scaled_rates and _is_same(group["lr"], scaled_rates[key]) for key in keys)


def _is_same(rate: Any, other: Any) -> bool:
    """Return whether two rates are the same object or number. A tensor on a GPU is not read."""
    if isinstance(rate, Tensor) and rate.device.type != "cpu":
        return rate is other
    return rate is other or bool(rate == other)


def reads_rate(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether a step of `optimizer` uses a learning rate that can be multiplied. Rprop reads it only
    before its first step."""
    return not isinstance(optimizer, torch.optim.Rprop) and any(map(has_rate, optimizer.param_groups))


def has_rate(group: dict[str, Any]) -> bool:
    """Return whether a parameter group has a learning rate that can be multiplied: a number or a tensor."""
    return isinstance(group.get("lr"), float | int | Tensor)
