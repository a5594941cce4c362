"""The learning rates of a script's optimizers, multiplied while an optimizer steps."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from harness.attach.reasons import SETS_RATE


class _Scaled(NamedTuple):
    optimizer: torch.optim.Optimizer
    group: dict[str, Any]
    own: Any
    scaled: Any
    factor: float

    @property
    def rate_after(self) -> Any:
        """The script's own rate after the step, which may have set another one: a number that is nearer to
        the scaled rate than to the script's own was computed from it, as by an optimizer with a decay."""
        rate: Any = self.group["lr"]
        if rate is self.scaled:
            return self.own
        if not self._is_number or self.is_replaced:
            return rate
        return rate / self.factor

    @property
    def is_replaced(self) -> bool:
        """Return whether the step has set a rate that was not computed from the scaled one."""
        rate: Any = self.group["lr"]
        if rate is self.scaled or not self._is_number:
            return False
        return _distance(rate, self.scaled) >= _distance(rate, self.own)

    @property
    def _is_number(self) -> bool:
        return all(isinstance(one, float | int) and one > 0 for one in (self.group["lr"], self.own))


class _WithinHooks:
    """The part of an optimizer's step between the hooks that the script has registered for it. They read and
    set its own rates: in one of them its scheduler may step. A step may call that of its base class, and then
    torch calls all hooks twice."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        begin: Callable[[torch.optim.Optimizer], object],
        end: Callable[[torch.optim.Optimizer], object],
    ) -> None:
        self.optimizer = optimizer
        self._begin = begin
        self._end = end
        self._depth = 0
        after = optimizer.register_step_post_hook(self._ended)
        hooks: Any = optimizer._optimizer_step_post_hooks  # An OrderedDict, which torch declares as a dict.
        hooks.move_to_end(after.id, last=False)
        self._handles = optimizer.register_step_pre_hook(self._began), after

    def remove(self) -> None:
        """Leave only the script's hooks. Idempotent."""
        for handle in self._handles:
            handle.remove()

    def _began(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        self._depth += 1
        if self._depth == 1:
            self._begin(optimizer)

    def _ended(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        self._depth -= 1
        if not self._depth:
            self._end(optimizer)


def _call(function: Callable[..., object], *arguments: object) -> object:
    return function(*arguments)


def _ignore(_message: str) -> None:
    """Without a run there is nowhere to report to."""


class LearningRateFactor:
    """Multiplies `lr` of every parameter group for the duration of a step, so that schedulers, logs and
    checkpoints of the script read its own values. Used on the training thread.

    Attributes:
        factor: the factor in effect; 1 leaves everything alone.
        scaled: the rates that are multiplied at the moment.
        warn: called with a sentence where an optimizer sets its rate in its step, once per factor.
    """

    def __init__(self, run: Callable[..., object] = _call) -> None:
        """`run` calls a function of ours from a hook within the script's step, and handles its errors."""
        self._run = run
        self.factor = 1.0
        self.scaled: list[_Scaled] = []
        self.warn: Callable[[str], object] = _ignore
        self._within_hooks: list[_WithinHooks] = []
        self._warned_factor = 1.0

    @property
    def is_own(self) -> bool:
        """Return whether the script's own rates are in effect."""
        return self.factor == 1.0 and not self.scaled and not self._within_hooks

    def update_began(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to step. One that steps within another one, with the same parameters, is part
        of it if it has taken its rate over; one that did not end its previous step failed in it."""
        self.update_ended(optimizer)
        if self.factor == 1.0:
            return
        if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
            begin, end = partial(self._run, self._scale), partial(self._run, self._restore)
            self._within_hooks.append(_WithinHooks(optimizer, begin, end))
        else:
            self._scale(optimizer)

    def update_ended(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has stepped."""
        self._restore(optimizer)
        self._remove_hooks(optimizer)

    def restore(self) -> None:
        """Restore the script's learning rates, after a step that failed. Idempotent."""
        self._restore(None)
        self._remove_hooks(None)

    def _scale(self, optimizer: torch.optim.Optimizer) -> None:
        scaled_rates = {id(weight): one.scaled for one in self.scaled for weight in one.group["params"]}
        for group in optimizer.param_groups:
            if has_rate(group) and not (scaled_rates and _is_within(group, scaled_rates)):
                own = group["lr"]
                group["lr"] = scaled = own * self.factor
                self.scaled.append(_Scaled(optimizer, group, own, scaled, self.factor))

    def _restore(self, optimizer: torch.optim.Optimizer | None) -> None:
        rest = []
        for one in self.scaled:
            if optimizer is not None and one.optimizer is not optimizer:
                rest.append(one)
            elif has_rate(one.group):
                if one.is_replaced and self._warned_factor != one.factor:
                    self._warned_factor = one.factor
                    self.warn(SETS_RATE.format(kind=type(one.optimizer).__name__, factor=one.factor))
                one.group["lr"] = one.rate_after
        self.scaled = rest

    def _remove_hooks(self, optimizer: torch.optim.Optimizer | None) -> None:
        rest = []
        for one in self._within_hooks:
            if optimizer is not None and one.optimizer is not optimizer:
                rest.append(one)
            else:
                one.remove()
        self._within_hooks = rest


def _distance(rate: float, other: float) -> float:
    """Return how many times as large the larger of two positive rates is."""
    return max(rate, other) / min(rate, other)


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
