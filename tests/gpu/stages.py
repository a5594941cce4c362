"""The stages of `make gpu-check`: the questions in the order of the report, and the time for each."""

from typing import NamedTuple


class Stage(NamedTuple):
    """One question. `module` in `tests.gpu.measures` has `measure(context)`. `rank` is the order of
    execution: what may have to be mended comes first. `budget_s` is the time of one call, its process's start
    included; an item is begun only while `item_s` are left, in which nearly all of them end."""

    key: str
    title: str
    module: str
    rank: int
    budget_s: float
    item_s: float
    needs_cuda: bool = True


STAGES = (
    Stage("tests", "Does everything run?", "suite", 3, 245, 30),
    Stage("overflow", "Overflow in the allocator's memory history", "overflow", 2, 60, 30),
    Stage("refcount", "References of `False` over memory snapshots", "refcount", 4, 30, 10),
    Stage("texts", "Out-of-memory texts", "texts", 1, 90, 20),
    Stage("phases", "Phases against the profiler", "phases", 7, 45, 10, needs_cuda=False),
    Stage(
        "prediction", "Prediction against the allocator's peak", "prediction", 8, 130, 15, needs_cuda=False
    ),
    Stage("events", "Overhead per step", "events", 6, 45, 15),
    Stage("lists", "Reading the allocator's lists", "lists", 5, 30, 10, needs_cuda=False),
    Stage("nvml", "NVML and GPM fields", "nvml", 0, 25, 10),
    Stage("worth", "AMP, TF32 and channels_last", "worth", 9, 220, 20, needs_cuda=False),
    Stage("transfers", "Pinned memory and non-blocking copies", "transfers", 10, 55, 15, needs_cuda=False),
    Stage("compile", "torch.compile", "compiling", 11, 110, 30, needs_cuda=False),
    Stage("recordings", "Recorded runs", "recordings", 12, 115, 25, needs_cuda=False),
)
"""In the order of the report."""


def budget_s() -> float:
    """The time of all stages in one call."""
    return sum(stage.budget_s for stage in STAGES)
