"""Following allocations: what is made, by whom, for what, and what stays."""

from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules import module as torch_module

from harness.records.memory import MemoryCategory
from harness.records.run import Phase
from harness.tracking import history
from harness.tracking.blocks import LiveBlock, TrackingResult
from harness.tracking.history import HistoryTracker
from harness.tracking.modules import ModuleTrail
from harness.tracking.owners import module_memory_rows, other_tensors, owned_tensors, sizes, storage_id
from harness.tracking.storages import StorageWatch
from harness.tracking.tensor_tracker import TensorTracker
from harness.train.workload import Workload
from harness.watch.capture.following import FollowedStep
from tests.snapshot_factories import FORWARD, RecordedAllocator
from tests.train_factories import a_step, a_workload, raising

pytestmark = pytest.mark.slow

WEIGHTS = MemoryCategory.WEIGHTS
CPU = torch.device("cpu")


def run(_name: str, function: object) -> bool:
    assert callable(function)
    function()
    return True


@pytest.fixture(scope="module")
def workload() -> Iterator[Workload]:
    """In training, with its optimizer's state."""
    result = a_workload()
    a_step(result)
    yield result
    result.close()


def followed(workload: Workload, steps: int = 3, keep: list[Tensor] | None = None) -> TrackingResult:
    """Return what `steps` steps gave; with `keep` each leaves a tensor of 4,000 bytes in it."""
    follower = TensorTracker(workload.model, run)
    following = FollowedStep(workload, follower, run, CPU)
    forward = workload.forward

    def leaky(inputs: Tensor, targets: Tensor) -> Tensor:
        if keep is not None:
            keep.append(torch.ones(1000))
        return forward(inputs, targets)

    workload.forward = leaky
    following.attach()
    try:
        follower.begin_window()
        for _ in range(steps):
            follower.begin_step()
            a_step(workload)
            follower.end_step()
        return follower.end_window()
    finally:
        following.detach()
        follower.stop()
        workload.forward = forward


def live(blocks: list[LiveBlock], category: MemoryCategory) -> int:
    return sum(block.size_bytes for block in blocks if block.category is category)


def parameter_bytes(workload: Workload) -> int:
    return sum(p.numel() * p.element_size() for p in workload.model.parameters())


def test_weights_gradients_and_optimizer_state_are_told_by_what_holds_them(workload: Workload) -> None:
    result = followed(workload).live
    size = parameter_bytes(workload)
    assert live(result, MemoryCategory.WEIGHTS) == size
    # Adam keeps two moments and a count a parameter.
    steps = 4 * len(list(workload.model.parameters()))
    assert live(result, MemoryCategory.OPTIMIZER) == 2 * size + steps
    assert live(result, MemoryCategory.GRADIENTS) == size
    names = {block.site for block in result if block.category is WEIGHTS}
    assert names == {name for name, _ in workload.model.named_parameters()}


def test_what_the_forward_pass_saves_is_activations_of_its_module(workload: Workload) -> None:
    saved = followed(workload).activation_bytes
    assert saved["blocks.0.1"] == 8 * 128 * 4  # The ReLU keeps its output: batch × width × float32.
    assert "blocks.0.0" not in saved  # Its output went into the ReLU and was let go of.


def test_what_each_step_keeps_is_named_by_its_line_and_does_not_count_the_last_two(
    workload: Workload,
) -> None:
    stored: list[Tensor] = []
    retained = followed(workload, steps=6, keep=stored).retained
    assert len(stored) == 6
    assert [block.size_bytes for block in retained] == [4000] * 4
    assert {block.site.rpartition(":")[0] for block in retained} == {"tests/unit/test_following.py"}
    assert retained[0].stack.startswith(retained[0].site)


def test_steps_that_keep_nothing_grow_nothing(workload: Workload) -> None:
    assert followed(workload, steps=4).retained == []


def test_afterwards_nothing_is_left_on(workload: Workload) -> None:
    before = dict(workload.__dict__)
    hooks = len(torch_module._global_forward_hooks), len(torch_module._global_forward_pre_hooks)
    followed(workload)
    assert torch._C._len_torch_dispatch_stack() == 0
    assert (len(torch_module._global_forward_hooks), len(torch_module._global_forward_pre_hooks)) == hooks
    functions = ("next_batch", "to_device", "forward", "backward", "update", "tidy")
    assert all(workload.__dict__[name] is before[name] for name in functions)


def test_an_error_within_a_followed_step_leaves_the_mode_off(workload: Workload) -> None:
    follower = TensorTracker(workload.model, run)
    follower.begin_window()
    follower.begin_step()
    fail = raising(torch.OutOfMemoryError("CUDA out of memory."))
    with pytest.raises(torch.OutOfMemoryError), follower.phase(Phase.FORWARD):
        fail()
    assert torch._C._len_torch_dispatch_stack() == 0
    follower.stop()


def test_allocations_after_the_end_of_a_loader_are_no_inputs() -> None:
    tracker = TensorTracker(nn.Linear(2, 2), run)
    tracker.begin_window()
    tracker.begin_step()
    tracker.follow_between()
    try:
        with suppress(StopIteration), tracker.phase(Phase.DATA_WAIT):
            next(iter(()))
        evaluated = torch.ones(1000)
        assert [(block.size_bytes, block.category) for block in tracker.live()] == [
            (evaluated.nbytes, MemoryCategory.UNKNOWN)
        ]
    finally:
        tracker.stop()


def test_settings_that_take_effect_end_the_following(workload: Workload) -> None:
    follower = TensorTracker(workload.model, run)
    following = FollowedStep(workload, follower, run, CPU)
    following.attach()
    was_attached = following.is_attached
    workload.reconfigure(workload.settings.model_copy(update={"learning_rate": 0.5}))
    assert (was_attached, following.is_attached) == (True, False)
    forward = workload.forward
    following.detach()
    follower.stop()
    assert workload.forward is forward


def test_a_broken_probe_does_not_break_the_step(workload: Workload) -> None:
    def broken(_name: str, _function: object) -> bool:
        return False

    follower = TensorTracker(workload.model, broken)
    follower.begin_window()
    follower.begin_step()
    with follower.phase(Phase.FORWARD):
        assert float(torch.ones(3).sum()) == 3
    follower.end_step()
    assert follower.end_window().retained == []
    follower.stop()


def test_more_blocks_than_are_followed_are_said(workload: Workload) -> None:
    follower = TensorTracker(workload.model, run, most_live=2)
    follower.begin_window()
    follower.begin_step()
    with follower.phase(Phase.FORWARD):
        stored = [torch.ones(10) for _ in range(5)]
    follower.end_step()
    result = follower.end_window()
    follower.stop()
    assert len(stored) == 5
    assert live(result.live, MemoryCategory.UNKNOWN) == 2 * 40
    assert result.note == "3 blocks beyond 2 were not tracked."


class Shared(nn.Module):
    """Two layers with one weight, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x))
        return out


def test_a_shared_weight_is_counted_once_and_belongs_to_the_first_module() -> None:
    model = Shared()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    rows = {row.module: row for row in module_memory_rows(1, model, sizes(model, optimizer))}
    assert [rows[path].parameter_bytes for path in ("", "first", "second")] == [0, 64, 0]
    assert [rows[path].buffer_bytes for path in ("", "first", "second")] == [12, 0, 0]
    assert [rows[path].gradient_bytes for path in ("", "first", "second")] == [0, 64, 0]
    assert [rows[path].optimizer_bytes for path in ("", "first", "second")] == [0, 64, 0]
    assert rows["first"].activation_bytes is None
    optimizer.zero_grad(set_to_none=True)
    assert {row.gradient_bytes for row in module_memory_rows(1, model, sizes(model, optimizer))} == {None}


def test_tensors_that_only_the_optimizer_has_are_the_whole_models() -> None:
    model, alone = nn.Linear(3, 2), torch.ones(5, 4, requires_grad=True)
    optimizer = torch.optim.Adam([*model.parameters(), alone])
    (model(torch.ones(1, 3)).sum() + alone.sum()).backward()
    optimizer.step()
    (row,) = module_memory_rows(1, model, sizes(model, optimizer))
    values = 3 * 2 + 2 + 5 * 4
    assert (row.parameter_bytes, row.gradient_bytes) == (4 * values, 4 * values)
    assert (
        row.optimizer_bytes == 2 * 4 * values + 3 * 4
    )  # And Adam's count of steps for each of three tensors.
    named = {owner.name: owner.module for _, owner in owned_tensors(model, optimizer)}
    assert named["tensor 1 of the optimizer"] == named["exp_avg of tensor 1 of the optimizer"] == ""


def test_each_storage_is_named_once() -> None:
    model = Shared()
    optimizer = torch.optim.Adam(model.parameters())
    addresses = [storage_id(tensor) for tensor, _ in owned_tensors(model, optimizer)]
    assert len(addresses) == len(set(addresses)) == 2


def test_tensors_nobody_owns_are_found_by_shape() -> None:
    stray = torch.zeros(123, 7)
    result = other_tensors("cpu", set(), cpu_ns=lambda: 0)
    names = [owner.name for tensor, owner in result if tensor is stray]
    assert names == ["float32 (123, 7), older than the tracked steps"]


def test_the_search_for_them_ends_in_time() -> None:
    assert other_tensors("cpu", set(), cpu_ns=iter((0, 10**9)).__next__) == []


def test_in_the_backward_pass_the_module_is_whose_node_runs() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    trail = ModuleTrail(model)
    trail.start()
    observed: list[str | None] = []

    watch = StorageWatch(
        lambda _storage, _size, _function: observed.append(trail.current()), lambda _key: None
    )
    try:
        loss = model(torch.ones(3, 4)).sum()
        with watch:
            loss.backward()
    finally:
        trail.stop()
    watch.forget()
    assert observed[0] is None  # The sum's, outside of the model.
    assert [path for path in dict.fromkeys(observed) if path] == ["2", "1", "0"]


class Clock:
    """Wall time in nanoseconds, set by hand in microseconds."""

    def __init__(self) -> None:
        self.us = 0

    def __call__(self) -> int:
        return self.us * 1000


def test_a_gpus_history_is_joined_to_phases_modules_and_owners() -> None:
    clock, allocator = Clock(), RecordedAllocator()
    model = nn.Sequential(nn.Linear(4, 4, bias=False))
    (weight,) = model.parameters()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    allocator.allocate(weight.untyped_storage().data_ptr(), 512, 0)
    follower = HistoryTracker(model, 0, allocator, unix_ns=clock)
    follower.start(owned_tensors(model, optimizer))
    follower.begin_window()
    for step in range(1, 5):
        follower.begin_step()
        base = 1000 * step
        clock.us = base
        with follower.phase(Phase.FORWARD):
            follower._module_changed("0")
            allocator.allocate(1000 + step, 1024, base + 1, FORWARD)  # a leak
            allocator.allocate(64, 2048, base + 2, FORWARD)  # saved
            allocator.allocate(128, 512, base + 3, FORWARD)
            allocator.free(128, base + 4)
            clock.us = base + 10
            follower._module_changed(None)
        with follower.phase(Phase.BACKWARD):
            allocator.allocate(256, 4096, base + 11)
            allocator.free(64, base + 12)
            allocator.free(256, base + 13)
            clock.us = base + 20
        follower.end_step()
    result = follower.end_window()
    follower.stop()
    assert allocator.modes == ["keep", "follow", "keep", "off"]
    assert live(result.live, WEIGHTS) == 512
    assert live(result.live, MemoryCategory.ACTIVATIONS) == 2048
    assert live(result.live, MemoryCategory.TEMPORARIES) == 4096
    assert live(result.live, MemoryCategory.UNKNOWN) == 4 * 1024
    assert [(b.size_bytes, b.module, b.site) for b in result.retained] == [
        (1024, "0", "project/net.py:40 forward")
    ] * 2
    assert result.activation_bytes == {"0": 2048 + 1024}
    assert result.raw is not None
    assert "someone" not in str(result.raw)


@pytest.mark.parametrize("tensors", [0, 1, 4])
def test_workspaces_of_cublas_are_told_apart_by_their_size(tensors: int) -> None:
    """Neither a tensor of that size, nor so many blocks of it that they cannot be workspaces."""
    allocator, size = RecordedAllocator(), 1 << 20
    held = [torch.empty(size, dtype=torch.uint8) for _ in range(tensors)]
    for number in range(2):
        allocator.allocate((number + 1) << 40, size, 0)
    for tensor in held:
        allocator.allocate(tensor.untyped_storage().data_ptr(), size, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "other_tensors", lambda _, addresses: other_tensors("cpu", addresses))
        tracker = HistoryTracker(nn.Linear(2, 2), 0, allocator, workspace_bytes=size)
        tracker.start(())
        named = live(tracker.live(), MemoryCategory.LIBRARIES)
        tracker.stop()
    assert named == (2 * size if tensors < 4 else 0)


def test_followed_all_the_time_nothing_piles_up(workload: Workload) -> None:
    follower = TensorTracker(workload.model, run)
    following = FollowedStep(workload, follower, run, CPU)
    following.attach()
    for _ in range(5):
        a_step(workload)
    after_five = len(follower._trail._numbers), len(follower.live())
    for _ in range(5):
        a_step(workload)
    assert (len(follower._trail._numbers), len(follower.live())) == after_five
    assert follower._new_blocks == follower._freed_blocks == []
    following.detach()
    follower.stop()


def test_a_gpu_followed_all_the_time_names_what_lasts() -> None:
    allocator = RecordedAllocator()
    model = nn.Sequential(nn.Linear(4, 4, bias=False))
    (weight,) = model.parameters()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    allocator.allocate(weight.untyped_storage().data_ptr(), 512, 0)
    follower = HistoryTracker(model, 0, allocator)
    follower.start(owned_tensors(model, optimizer))
    weight.grad = torch.ones_like(weight)
    for _ in range(3):
        with follower.phase(Phase.FORWARD):
            pass
        follower.own(owned_tensors(model, optimizer))
    allocator.allocate(weight.grad.untyped_storage().data_ptr(), 1024, 0, FORWARD)
    assert [(b.category, b.site) for b in follower.live()] == [
        (MemoryCategory.WEIGHTS, "0.weight"),
        (MemoryCategory.UNKNOWN, "project/net.py:40 forward"),
    ]
    assert follower._marks == []
    follower.stop()


def test_tensors_without_memory_are_nobodys() -> None:
    with FakeTensorMode():
        fake = torch.empty(1_000_003)
    meta = torch.empty(1_000_003, device="meta")
    real = torch.zeros(1_000_003)
    result = [tensor for tensor, _ in other_tensors("cpu", set()) if tensor.shape == real.shape]
    assert [tensor is real for tensor in result] == [True]
    del fake, meta
