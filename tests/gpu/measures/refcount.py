"""Measure whether `torch.cuda.memory_snapshot` leaves references to `False` behind."""

import sys
from collections.abc import Callable

import torch

from tests.gpu.context import Context

CALLS = 1_000
_IMMORTAL = 2**30
"""Python 3.12 and newer count no references of `False` (PEP 683), and say a number beyond this."""


def measure(context: Context) -> None:
    """Count over `CALLS` snapshots of a few hundred blocks."""
    for item in context.pending(["False"]):
        tensors = [torch.empty(512, device="cuda") for _ in range(300)]
        context.put(item, count(torch.cuda.memory_snapshot) | {"blocks": len(tensors)})


def count(snapshot: Callable[[], object], calls: int = CALLS) -> dict[str, int | bool]:
    """References of `False` before and after the calls. `is_immortal`: this Python does not count them."""
    snapshot()
    before = sys.getrefcount(False)
    for _ in range(calls):
        snapshot()
    after = sys.getrefcount(False)
    return {"calls": calls, "before": before, "after": after, "is_immortal": before > _IMMORTAL}
