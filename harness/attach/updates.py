"""The updates of optimizers that the calling thread is within, and the errors that leave them."""

import sys
from collections.abc import Callable, Iterator
from functools import wraps
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.autograd.profiler import record_function

from harness.watch.training import Replaced

# Of torch's function around every `step`, which calls the hooks. Once a class and its base class have one
# each, a `step` that calls that of the base class calls them twice.
_STEP_CODE = torch.optim.Optimizer.profile_hook_step(torch.optim.Optimizer.step).__code__


def updates_under_way() -> Iterator[torch.optim.Optimizer]:
    """Yield the optimizer of each `step` that the caller is within, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _STEP_CODE and "self" in frame.f_locals:
            yield frame.f_locals["self"]
        frame = frame.f_back


def changes_nothing(optimizer: torch.optim.Optimizer, arguments: Any = (), keywords: Any = None) -> bool:
    """Return whether a `step` that is called with `arguments`, the first of which is the optimizer, changes
    nothing: no parameter has a gradient, as where a script draws the schedule of its learning rate. Only
    torch's own optimizers are known to need one, and a closure may compute it."""
    if len(arguments) > 1 or keywords or not type(optimizer).__module__.startswith("torch.optim."):
        return False
    return all(one.grad is None for group in optimizer.param_groups for one in group["params"])


def accumulates_gradients(model: nn.Module) -> bool:
    """Return whether a backward pass leaves gradients with parameters of `model`. It does not with those that
    are computed from others, as in a copy for a task of meta-learning: its update is that of the others."""
    return any(one.requires_grad and one.is_leaf for one in model.parameters())


def left_update(error: BaseException | None) -> bool:
    """Return whether `error` has left the `step` of an optimizer."""
    trace = None if error is None else error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is _STEP_CODE:
            return True
        trace = trace.tb_next
    return False


def follow_errors(on_error: Callable[[BaseException], None]) -> Replaced:
    """Call `on_error` with each error that leaves an update, until the result is removed. torch has no hook
    for these; it ends the record of the update in its profiler. That takes a call per update, so this is for
    scripts in which one has failed."""

    def wrapper(original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)
        def end(record: record_function, exc_type: Any, error: Any, traceback: Any) -> None:
            if error is not None and record.name.startswith("Optimizer.step#"):
                on_error(error)
            original(record, exc_type, error, traceback)

        return end

    return Replaced(record_function, "__exit__", wrapper)
