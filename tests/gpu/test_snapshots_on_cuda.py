"""Snapshots by the caching allocator's history, on a GPU. Run with `make gpu-check`.

Nothing here touches CUDA when it is imported.
"""

import pickletools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from harness.device.allocated import allocated_bytes
from harness.device.cuda.allocator import read_segments
from harness.device.cuda.cublas import workspace_bytes
from harness.records.memory import MemoryCategory
from harness.records.run import Phase
from harness.tracking.blocks import LiveBlock, TrackingResult
from harness.tracking.history import CudaHistory, HistoryTracker
from harness.tracking.owners import gradients, owned_tensors, parameter_names
from harness.tracking.snapshot_file import summarize, write
from tests.gpu.measures.overflow import run_child
from tests.gpu.overflow import ALIVE

pytestmark = pytest.mark.gpu

MIB = 1 << 20
STEPS = 6


class Net(nn.Module):
    """Two wide layers, with a list that can be made to leak."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(1024, 1024)
        self.second = nn.Linear(1024, 1024)
        self.kept: list[Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x))
        if self.kept is not None:
            self.kept.append(torch.zeros(MIB // 4, device=x.device))
        out: Tensor = self.second(hidden)
        return out


@pytest.fixture
def net() -> Iterator[Net]:
    torch.cuda.empty_cache()
    yield Net().to("cuda:0")
    assert not torch._C._cuda_isHistoryEnabled()
    torch.cuda.empty_cache()


def follow(net: Net) -> TrackingResult:
    optimizer = torch.optim.Adam(net.parameters())
    inputs = torch.ones(256, 1024, device="cuda:0")
    names = parameter_names(net, optimizer)

    def plain_step() -> None:
        net(inputs).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def followed_step(follower: HistoryTracker) -> None:
        with follower.phase(Phase.FORWARD):
            loss = net(inputs).sum()
        with follower.phase(Phase.BACKWARD):
            loss.backward()
        follower.own(gradients(names))
        with follower.phase(Phase.OPTIMIZER):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    for _ in range(2):
        plain_step()
    size = workspace_bytes(torch.cuda.get_device_capability(0))
    follower = HistoryTracker(net, 0, CudaHistory(), workspace_bytes=size)
    try:
        follower.start(owned_tensors(net, optimizer))
        follower.begin_window()
        for _ in range(STEPS):
            follower.begin_step()
            followed_step(follower)
            follower.end_step()
        return follower.end_window()
    finally:
        follower.stop()


def live(blocks: list[LiveBlock], category: MemoryCategory) -> int:
    return sum(block.size_bytes for block in blocks if block.category is category)


def test_weights_gradients_and_optimizer_state_are_named(net: Net) -> None:
    result = follow(net)
    size = sum(p.numel() * 4 for p in net.parameters())
    assert live(result.live, MemoryCategory.WEIGHTS) == pytest.approx(size, abs=4096)
    assert live(result.live, MemoryCategory.OPTIMIZER) >= 2 * size
    assert live(result.live, MemoryCategory.GRADIENTS) > 0
    assert result.retained == []


def test_the_workspaces_of_cublas_are_named(net: Net) -> None:
    """All but the one of cuBLASLt, of 1 MiB, a size that tensors have."""
    torch._C._cuda_clearCublasWorkspaces()
    result = follow(net)
    before_bytes = torch.cuda.memory_allocated(0)
    torch._C._cuda_clearCublasWorkspaces()
    freed_bytes = before_bytes - torch.cuda.memory_allocated(0)
    size = workspace_bytes(torch.cuda.get_device_capability(0))
    assert freed_bytes >= size
    assert live(result.live, MemoryCategory.LIBRARIES) == freed_bytes // size * size


def test_activations_belong_to_their_modules(net: Net) -> None:
    saved = follow(net).activation_bytes
    assert saved.get("first", 0) + saved.get("", 0) + saved.get("second", 0) >= 256 * 1024 * 4


def test_a_list_that_keeps_tensors_is_the_first_suspect(net: Net) -> None:
    net.kept = []
    retained = follow(net).retained
    assert [block.size_bytes for block in retained] == [MIB] * (STEPS - 2)
    assert {block.site.rpartition(":")[0] for block in retained} == {"tests/gpu/test_snapshots_on_cuda.py"}
    assert {block.module for block in retained} == {""}


def test_the_file_is_memory_vizs_and_reads_back(net: Net, tmp_path: Path) -> None:
    result = follow(net)
    assert result.raw is not None
    write(tmp_path / "s.pickle", result.raw)
    data = (tmp_path / "s.pickle").read_bytes()
    assert next(pickletools.genops(data))[1] == 4
    message, rows = summarize(tmp_path / "s.pickle")
    assert message.reserved_bytes == torch.cuda.memory_reserved(0)
    assert message.allocated_bytes >= live(result.live, MemoryCategory.WEIGHTS)
    assert rows


def test_what_is_allocated_is_what_torch_says() -> None:
    block = torch.zeros(5 * MIB, dtype=torch.uint8, device="cuda:0")
    assert allocated_bytes(read_segments(0)) == torch.cuda.memory_allocated(0)
    del block


def test_an_unfollowed_gpu_records_no_history() -> None:
    assert not torch._C._cuda_isHistoryEnabled()


def test_history_may_shrink_after_more_events_than_it_holds() -> None:
    """Corrupts the heap, and so ends the process sooner or later, when the ring is not emptied in between."""
    result = run_child([sys.executable, "-m", "tests.gpu.overflow", "cleared"])
    assert result["ok"], result
    assert result["counts"]["events"] == 1
    assert result["counts"]["blocks_with_stack"] >= result["counts"]["alive"] == ALIVE


def test_a_history_that_the_script_records_is_foreign(net: Net) -> None:
    history = CudaHistory()
    history.follow()
    assert not history.is_foreign()
    history.off()
    torch.cuda.memory._record_memory_history("all", max_entries=1000)
    try:
        assert history.is_foreign()
    finally:
        torch.cuda.memory._record_memory_history(None)
    assert not history.is_foreign()
    assert next(net.parameters()).is_cuda
