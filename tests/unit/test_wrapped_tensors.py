"""Test the memory of tensors that are wrappers, that have no address, and that are on another device."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.optim import AdamW, Optimizer
from torch.testing._internal.distributed.fake_pg import FakeStore

from harness.analysis.oom.report import OomPhase
from harness.device.protocol import AllocatorReading
from harness.records.memory import MemoryCategory
from harness.tracking.blocks import Owner
from harness.tracking.history import HistoryTracker
from harness.tracking.owners import (
    OwnedTensor,
    divide,
    module_memory_rows,
    other_tensors,
    owned_tensors,
    sizes,
    storage_id,
)
from harness.watch.capture.snapshot_rows import Census, SnapshotWriter
from harness.watch.oom.capture import FailedRun, capture_evidence
from tests.snapshot_factories import FORWARD, RecordedAllocator
from tests.train_factories import a_device, a_workload

pytestmark = pytest.mark.slow

META = torch.device("meta")
CPU = torch.device("cpu")
# A quarter of 256 rows of 64 floats: the part of one of four processes.
LOCAL_BYTES = 256 * 64 * 4 // 4


class _WithoutAddress(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, *_args: object, **_kwargs: object) -> object:
        raise NotImplementedError


@pytest.fixture
def sharded() -> Iterator[tuple[nn.Module, Optimizer]]:
    """A layer whose weight is a DTensor over four processes, as with FSDP2, after one update."""
    distributed.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    mesh = init_device_mesh("cpu", (4,))
    model = nn.Linear(64, 256, bias=False)
    model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), mesh, [Shard(0)]))
    optimizer = AdamW(model.parameters())
    model.weight.grad = distribute_tensor(torch.ones(256, 64), mesh, [Shard(0)])
    optimizer.step()
    yield model, optimizer
    distributed.destroy_process_group()


def test_of_a_sharded_weight_the_part_of_this_process_counts(sharded: tuple[nn.Module, Optimizer]) -> None:
    model, optimizer = sharded
    (row,) = module_memory_rows(1, model, sizes(model, optimizer))
    assert (row.parameter_bytes, row.gradient_bytes) == (LOCAL_BYTES, LOCAL_BYTES)
    assert row.optimizer_bytes == 2 * LOCAL_BYTES + 4  # And the count of steps.
    addresses = {storage_id(tensor) or 0 for tensor, _ in owned_tensors(model, optimizer)}
    assert not [one for one in other_tensors("cpu", addresses) if isinstance(one.tensor, DTensor)]


def test_the_history_of_the_allocator_names_a_sharded_weight(sharded: tuple[nn.Module, Optimizer]) -> None:
    model, optimizer = sharded
    assert isinstance(model.weight, DTensor)
    allocator = RecordedAllocator()
    allocator.keep()
    address = model.weight.to_local().untyped_storage().data_ptr()
    allocator.allocate(address, LOCAL_BYTES, 0, FORWARD)
    tracker = HistoryTracker(model, 0, allocator)
    tracker.start(owned_tensors(model, optimizer))
    (block,) = tracker.live()
    assert block.category is MemoryCategory.WEIGHTS
    site = tracker.site_of(model.weight)
    assert site is not None
    assert site.endswith(":40 forward")
    tracker.stop()


def test_an_overwritten_output_of_a_compiled_graph_has_no_owner_and_breaks_no_snapshot() -> None:
    """torch/_inductor/cudagraph_trees.py marks the outputs of older runs by
    `torch._C._set_storage_data_ptr_access_error_msg`, which only builds with CUDA have; the address of this
    tensor raises a RuntimeError too."""
    output = torch.Tensor._make_wrapper_subclass(_WithoutAddress, (4,))
    with pytest.raises(RuntimeError):
        output.untyped_storage().data_ptr()
    tracker = HistoryTracker(nn.Linear(1, 1), 0, RecordedAllocator())
    tracker.start([OwnedTensor(output, Owner(MemoryCategory.TEMPORARIES, None, "the loss"))])
    assert tracker.site_of(output) is None
    tracker.stop()


def test_a_part_of_the_model_on_another_device_is_not_counted_as_memory_of_this_one() -> None:
    model = nn.ModuleDict({"here": nn.Linear(10, 10), "there": nn.Linear(10, 10, device=META)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    here, elsewhere_bytes = divide(sizes(model, optimizer), CPU)
    rows = {row.module: row for row in module_memory_rows(1, model, here)}
    assert (rows["here"].parameter_bytes, rows["there"].parameter_bytes) == (440, 0)
    assert elsewhere_bytes == {}, "tensors without data are nowhere"
    assert divide(sizes(model, optimizer), META)[1] == {"cpu": 440}


def test_the_census_states_what_is_on_other_devices(tmp_path: Path) -> None:
    workload = a_workload()
    writer = SnapshotWriter(workload, tmp_path, lambda: 0)
    elsewhere = {"cuda:1": 3 << 30, "cpu": 400}
    row = writer.count(Census([], elsewhere, AllocatorReading.unknown()), 5, 0).snapshot
    assert row.message.endswith("Not counted, because on another device: 3.00 GiB on cuda:1.")
    row = writer.count(Census([], {"cpu": 400}, AllocatorReading.unknown()), 5, 0).snapshot
    assert row.message == "The model and its optimizer hold nothing."
    workload.close()


def test_an_out_of_memory_report_lists_the_weights_on_the_device() -> None:
    workload = a_workload()
    workload.model.register_parameter("there", nn.Parameter(torch.empty(1000, 1000, device=META)))
    weights_bytes = sum(p.nbytes for p in workload.model.parameters() if p.device == CPU)
    try:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
    except torch.OutOfMemoryError as error:
        run = FailedRun(workload.settings, a_device(), workload, None, None, tuple)
        capture = capture_evidence(error, 7, OomPhase.FORWARD, run)
    weights = [one for one in capture.categories if one.category == MemoryCategory.WEIGHTS.value]
    assert [one.held_bytes for one in weights if one.module is None] == [weights_bytes]
    assert sum(one.held_bytes for one in weights if one.module is not None) == weights_bytes
    workload.close()


def test_a_lazy_layer_that_was_not_called_has_no_memory() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.LazyLinear(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert sum(one.size_bytes for one in sizes(model, optimizer)) == 4 * (2 * 3 + 3)
