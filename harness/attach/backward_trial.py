"""The backward passes of the first step under mixed precision that a person has switched on for a script."""

from collections.abc import Callable

import torch

from harness.attach.loader_refusals import is_one_of_several
from harness.attach.reasons import reason_of
from harness.attach.training import ScriptTraining
from harness.watch.oom.errors import is_out_of_memory

# Raised by operations that do not support a data type. Other exceptions may be a way to leave a call.
FAILURES = RuntimeError, TypeError, ValueError


class BackwardTrial:
    """One step in which a backward pass may fail: its forward pass is over, and cannot be repeated without
    mixed precision."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._is_under_way = False

    def covers(self, step: int) -> bool:
        """Return whether a backward pass that begins now, in `step`, belongs to the trial. One within
        another is a part of it, as where an activation checkpoint computes gradients."""
        return not self._is_under_way and self._step in (None, step)

    def is_over(self, step: int) -> bool:
        """Return whether `step` comes after the trial."""
        return not self._is_under_way and not self.covers(step)

    def run(self, compute: Callable[[], None], training: ScriptTraining, step: int) -> str | None:
        """Compute gradients by `compute`. Where that fails, return the reason; all gradients are zeros then,
        as scripts and a GradScaler expect some after a backward pass."""
        self._step, self._is_under_way = step, True
        try:
            compute()
        except FAILURES as error:
            # Kinds of the script's own may be its way to skip a batch; of several processes, one that goes on
            # alone would wait for the others' collectives.
            if type(error).__module__ != "builtins" or is_out_of_memory(error) or is_one_of_several():
                raise
            _zero_gradients(training)
            return reason_of(error)
        finally:
            self._is_under_way = False
        return None


def _zero_gradients(training: ScriptTraining) -> None:
    groups = [group for optimizer in training.optimizers for group in optimizer.param_groups]
    parameters = [one for group in groups for one in group["params"]]
    parameters += [one for model in training.models for one in model.parameters()]
    with torch.no_grad():
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.zero_()
            elif parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
