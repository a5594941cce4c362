"""Test that a tensor which steps replace by larger ones is found with its line, and inputs are not."""

import random

import pytest
import torch
from torch import nn

from harness.analysis.memory.snapshots import suspect_sentence, suspects
from harness.records.run import Phase
from harness.tracking.blocks import ReplacedBlock, TrackingResult, summarize
from harness.tracking.history import HistoryTracker
from harness.tracking.tensor_tracker import TensorTracker
from tests.snapshot_factories import FORWARD, RecordedAllocator, a_block

STEPS = 12
ROW_BYTES = 400


def run(_name: str, function: object) -> bool:
    assert callable(function)
    function()
    return True


class Script:
    """A step that keeps `rows` in one tensor, and has inputs of the length `samples`."""

    def __init__(self) -> None:
        self.kept = torch.zeros(1, 100)
        self.inputs = torch.zeros(1, 100)

    def step(self, rows: int, samples: int) -> None:
        self.inputs = torch.ones(samples, 100)
        if rows:
            self.kept = torch.cat([self.kept, torch.ones(rows, 100)])


def tracked(rows: list[int], samples: list[int], script: Script | None = None) -> TrackingResult:
    """The blocks that the CPU's tracker finds in a step for each of `rows` and `samples`."""
    follower, script = TensorTracker(nn.Linear(2, 2), run), script or Script()
    follower.begin_window()
    for rows_now, samples_now in zip(rows, samples, strict=True):
        follower.begin_step()
        with follower.phase(Phase.FORWARD):
            script.step(rows_now, samples_now)
        follower.end_step()
    result = follower.end_window()
    follower.stop()
    return result


@pytest.mark.parametrize("rows", [[3] * STEPS, [1, 0, 0, 0, 5, 0, 0, 0, 5, 0, 0, 0]])
def test_a_tensor_that_is_replaced_by_larger_ones_is_found_with_its_line(rows: list[int]) -> None:
    result = tracked(rows, [8] * STEPS)
    assert result.retained == []
    (replaced,) = result.replaced
    assert replaced.grown_bytes == ROW_BYTES * sum(rows[1:])
    assert replaced.block.size_bytes == ROW_BYTES * (1 + sum(rows))
    assert replaced.block.site.startswith("tests/unit/test_replaced_blocks.py:")
    assert replaced.block.site.endswith(" step")


def test_inputs_of_random_lengths_are_no_such_tensor() -> None:
    lengths = random.Random(7).choices(range(10, 400), k=STEPS)
    assert list(tracked([0] * STEPS, lengths).replaced) == []


class OneLine(Script):
    """A step that allocates inputs, the kept tensor and a small one that stays for a while on one line."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[torch.Tensor] = []

    def step(self, rows: int, samples: int) -> None:
        self.kept, loss = torch.cat([self.kept, torch.ones(rows, 100)]), torch.ones(1)
        self.losses = [*self.losses[-5:], loss]


def test_a_line_that_allocates_small_tensors_too_is_found() -> None:
    (replaced,) = tracked([3] * STEPS, [0] * STEPS, OneLine()).replaced
    assert replaced.grown_bytes == ROW_BYTES * 3 * (STEPS - 1)
    assert replaced.block.size_bytes == ROW_BYTES * (1 + 3 * STEPS)


class Growing(Script):
    """A step that appends ever larger tensors to a list."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[torch.Tensor] = []

    def step(self, rows: int, samples: int) -> None:
        self.parts.append(torch.ones(rows, 100))


def test_ever_larger_tensors_in_a_list_are_retained_not_replaced() -> None:
    result = tracked(list(range(1, STEPS + 1)), [0] * STEPS, Growing())
    assert list(result.replaced) == []
    assert len(result.retained) == STEPS - 2


def test_on_a_gpu_the_history_shows_it_between_the_phases_of_steps_too() -> None:
    now_us, allocator = 0, RecordedAllocator()
    follower = HistoryTracker(nn.Linear(2, 2), 0, allocator, unix_ns=lambda: now_us * 1000)
    follower.start(())
    follower.begin_window()
    for step in range(1, STEPS + 1):
        now_us = 1000 * step
        follower.begin_step()
        with follower.phase(Phase.FORWARD):
            now_us += 10
        allocator.allocate(step, 512 * step, now_us + 5, FORWARD)
        if step > 1:
            allocator.free(step - 1, now_us + 6)
        now_us += 20
        follower.end_step()
    result = follower.end_window()
    follower.stop()
    (replaced,) = result.replaced
    assert replaced.block.site == "project/net.py:40 forward"
    assert replaced.grown_bytes == 512 * (STEPS - 1)


def test_on_a_gpu_what_is_kept_between_the_phases_of_steps_is_retained() -> None:
    now_us, allocator = 0, RecordedAllocator()
    follower = HistoryTracker(nn.Linear(2, 2), 0, allocator, unix_ns=lambda: now_us * 1000)
    follower.start(())
    follower.begin_window()
    for step in range(1, 6):
        now_us = 1000 * step
        follower.begin_step()
        with follower.phase(Phase.FORWARD):
            now_us += 10
        allocator.allocate(step, 512, now_us + 5, FORWARD)
        now_us += 20
        follower.end_step()
    assert len(follower.end_window().retained) == 3
    follower.stop()


def test_its_growth_is_a_suspect_and_the_sentence_says_what_it_needs() -> None:
    block = a_block(40 * 2**20, site="train.py:8 <module>")
    summary = summarize(1, [block], [], replaced=[ReplacedBlock(block, 3 * 2**19)])
    (row,) = suspects(summary.rows)
    assert (row.grown_bytes, row.grown_blocks, row.held_bytes) == (3 * 2**19, 0, 40 * 2**20)
    assert suspect_sentence(summary.rows, 12) == (
        "In 12 steps the tensor allocated at train.py:8 <module> was replaced by larger ones, which grew by "
        "1.50 MiB: usually x = torch.cat([x, …]), which needs the old and the new tensor at once. Append to "
        "a list, or write into a tensor of the final size."
    )
