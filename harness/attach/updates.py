"""The updates of optimizers that the calling thread is within."""

import sys
from collections.abc import Iterator
from types import FrameType

import torch

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
