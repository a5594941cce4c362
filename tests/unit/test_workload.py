"""A model in training under settings that change between steps: real torch on the CPU."""

import itertools
import shutil
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import graph

from harness.device.testing.device import FAKE_FACTS
from harness.errors import SettingError
from harness.settings.declaration import OptimizerImpl
from harness.settings.spec import change
from harness.train.workload import Workload
from tests.train_factories import a_device, a_step, a_workload, raising

pytestmark = pytest.mark.slow


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def reconfigure(workload: Workload, **changes: Any) -> None:
    workload.reconfigure(change(workload.settings, changes))


def gradients_of_a_step(workload: Workload, batches: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
    for batch in batches:
        workload.backward(workload.forward(*workload.to_device(batch)))
    return [p.grad.clone() for p in workload.model.parameters() if p.grad is not None]


def test_it_learns() -> None:
    workload = a_workload(batch_size=64)
    losses = [a_step(workload) for _ in range(60)]
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])


def test_the_loss_carries_no_graph() -> None:
    workload = a_workload()
    a_step(workload)
    assert workload.loss.grad_fn is None


def test_accumulated_small_batches_have_the_gradient_and_loss_of_the_big_one() -> None:
    small, big = a_workload(batch_size=8, grad_accumulation=4), a_workload(batch_size=32)
    batches = [small.next_batch() for _ in range(4)]
    whole = (torch.cat([b[0] for b in batches]), torch.cat([b[1] for b in batches]))
    for ours, theirs in zip(
        gradients_of_a_step(small, batches), gradients_of_a_step(big, [whole]), strict=True
    ):
        assert_close(ours, theirs)
    assert_close(small.loss, big.loss)
    assert (small.micro_batches, small.samples_per_step) == (4, 32)


def test_each_accumulated_step_has_a_loss_of_its_own() -> None:
    workload = a_workload(grad_accumulation=2, learning_rate=1e-9)
    assert all(1.0 < a_step(workload) < 4.0 for _ in range(5))


def test_accumulation_is_switched_on_and_off_between_steps() -> None:
    workload = a_workload()
    for accumulation in (3, 1, 2):
        reconfigure(workload, grad_accumulation=accumulation)
        assert workload.samples_per_step == 8 * accumulation
        assert 0 < a_step(workload) < 5


def test_amp_changes_what_is_computed_in_and_not_the_weights_type() -> None:
    workload = a_workload()
    observed: list[torch.dtype] = []
    workload.model.head.register_forward_hook(lambda _m, _i, output: observed.append(output.dtype))  # type: ignore[union-attr]
    for amp in ("off", "bf16", "off"):
        reconfigure(workload, amp=amp)
        a_step(workload)
    assert observed == [torch.float32, torch.bfloat16, torch.float32]
    assert {p.dtype for p in workload.model.parameters()} == {torch.float32}


def test_bf16_gives_nearly_the_same_loss() -> None:
    plain, half = a_workload(batch_size=64), a_workload(batch_size=64, amp="bf16")
    for _ in range(5):
        assert abs(a_step(plain) - a_step(half)) < 0.1


def optimizer_state(workload: Workload) -> list[Tensor]:
    states = workload._optimizer.state
    return [states[p]["exp_avg"] for p in workload.model.parameters()]


@pytest.mark.parametrize(
    ("before", "after"),
    list(itertools.permutations((OptimizerImpl.LOOP, OptimizerImpl.FOREACH, OptimizerImpl.FUSED), 2)),
)
def test_other_kernels_go_on_from_the_same_optimizer_state(
    before: OptimizerImpl, after: OptimizerImpl
) -> None:
    switched, steady = a_workload(optimizer_impl=before), a_workload(optimizer_impl=before)
    for _ in range(3):
        assert a_step(switched) == a_step(steady)
    retained = [state.clone() for state in optimizer_state(switched)]
    reconfigure(switched, optimizer_impl=after)
    for old, new in zip(retained, optimizer_state(switched), strict=True):
        torch.testing.assert_close(old, new)
    for _ in range(3):
        assert a_step(switched) == pytest.approx(a_step(steady), rel=1e-3)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_every_optimizer_trains(optimizer: str) -> None:
    workload = a_workload(optimizer=optimizer)
    before = [p.detach().clone() for p in workload.model.parameters()]
    a_step(workload)
    assert any(not torch.equal(a, b) for a, b in zip(before, workload.model.parameters(), strict=True))


def test_a_new_learning_rate_moves_the_weights_by_so_much() -> None:
    workload = a_workload(optimizer="sgd", learning_rate=0.1)
    reconfigure(workload, learning_rate=0.5)
    assert [group["lr"] for group in workload._optimizer.param_groups] == [0.5]
    a_step(workload)


def test_the_learning_rate_survives_other_kernels() -> None:
    workload = a_workload()
    reconfigure(workload, learning_rate=0.25)
    reconfigure(workload, optimizer_impl="foreach")
    assert workload._optimizer.param_groups[0]["lr"] == 0.25


def layout_of_weights(workload: Workload) -> set[bool]:
    return {
        p.is_contiguous(memory_format=torch.channels_last) and not p.is_contiguous()
        for p in workload.model.parameters()
        if p.dim() == 4 and p.shape[1] > 1 and p.shape[2] > 1
    }


def test_channels_last_is_switched_on_and_off_for_weights_and_images() -> None:
    workload = a_workload(model="cnn", data="shapes", data_samples=64)
    reference = a_workload(model="cnn", data="shapes", data_samples=64)
    for expected in (True, False):
        reconfigure(workload, channels_last=expected)
        assert layout_of_weights(workload) == {expected}
        inputs, _ = workload.to_device(workload.next_batch())
        reference.next_batch()
        assert inputs.is_contiguous(memory_format=torch.channels_last) is expected
        assert a_step(workload) == pytest.approx(a_step(reference), rel=1e-3)


@pytest.mark.parametrize("implementation", list(OptimizerImpl))
def test_a_new_layout_does_not_change_what_is_learnt(implementation: OptimizerImpl) -> None:
    changing = a_workload(model="cnn", optimizer_impl=implementation)
    constant = a_workload(model="cnn", optimizer_impl=implementation)
    for expected in (False, True, False):
        reconfigure(changing, channels_last=expected)
        for _ in range(3):
            a_step(changing)
            a_step(constant)
    for ours, theirs in zip(changing.model.parameters(), constant.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_a_new_layout_and_new_kernels_together_do_not_change_what_is_learnt() -> None:
    changing, constant = a_workload(model="cnn", optimizer_impl="loop"), a_workload(model="cnn")
    for step in range(6):
        if step == 3:
            reconfigure(changing, channels_last=True, optimizer_impl="fused")
        a_step(changing)
        a_step(constant)
    for ours, theirs in zip(changing.model.parameters(), constant.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_highest_precision_is_plain_float32_for_convolutions_too() -> None:
    workload = a_workload()
    for precision, tf32 in (("high", True), ("highest", False)):
        reconfigure(workload, matmul_precision=precision)
        assert torch.backends.cudnn.allow_tf32 is tf32
        assert torch.get_float32_matmul_precision() == precision


def test_channels_last_is_refused_for_text_and_nothing_changes() -> None:
    workload = a_workload(model="rnn", sequence_length=16)
    before = workload.settings
    with pytest.raises(SettingError, match="this run trains on text"):
        reconfigure(workload, channels_last=True, batch_size=4)
    assert workload.settings is before
    a_step(workload)
    assert workload.next_batch()[0].shape[0] == 8


def test_checkpointing_computes_the_same_losses() -> None:
    plain, frugal = a_workload(), a_workload(activation_checkpointing=True)
    assert frugal.model.checkpointing
    for _ in range(3):
        assert a_step(plain) == pytest.approx(a_step(frugal), rel=1e-5)


def test_offloading_saved_tensors_computes_the_same_losses() -> None:
    plain, frugal = a_workload(), a_workload(offload_saved_tensors=True)
    for _ in range(3):
        assert a_step(plain) == pytest.approx(a_step(frugal), rel=1e-5)


def test_a_rebuilt_loader_does_not_repeat_the_first_ones_order() -> None:
    workload = a_workload()
    first = workload.next_batch()[0].clone()
    reconfigure(workload, prefetch_factor=3)
    assert not torch.equal(first, workload.next_batch()[0])


def test_gradients_are_set_to_none_or_to_zero_as_asked() -> None:
    workload = a_workload(set_to_none=False)
    a_step(workload)
    assert all(p.grad is not None and not p.grad.any() for p in workload.model.parameters())
    reconfigure(workload, set_to_none=True)
    a_step(workload)
    assert all(p.grad is None for p in workload.model.parameters())


def test_the_cache_is_emptied_every_so_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    device, emptied = a_device(), list[int]()
    monkeypatch.setattr(device, "empty_cache", lambda: emptied.append(1))
    workload = a_workload(device, empty_cache_every=3)
    times = []
    for step in range(1, 8):
        workload.tidy(step)
        times.append(len(emptied))
    assert times == [0, 0, 1, 1, 1, 2, 2]


def test_without_device_metrics_every_step_waits_for_its_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    naive, patient = a_workload(device_metrics=False), a_workload()
    monkeypatch.setattr(Tensor, "item", lambda _self: reads.append(1))
    naive.tidy(1)
    assert len(reads) == 1
    patient.tidy(1)
    assert len(reads) == 1


def test_what_cannot_be_compiled_is_refused_and_everything_is_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workload = a_workload(channels_last=True)
    reference = a_workload(channels_last=True)
    assert a_step(workload) == a_step(reference)
    monkeypatch.setattr(torch, "compile", lambda _model: raising(RuntimeError("no compiler\nfound")))
    loader, settings = workload._loader, workload.settings
    with pytest.raises(RuntimeError, match="no compiler"):
        reconfigure(
            workload,
            compile=True,
            batch_size=4,
            amp="bf16",
            channels_last=False,
            optimizer_impl="fused",
            grad_accumulation=2,
            learning_rate=0.5,
        )
    assert workload.settings is settings
    assert workload._loader is loader
    assert workload.samples_per_step == 8
    assert workload._optimizer.param_groups[0]["lr"] == settings.learning_rate
    for _ in range(2):
        assert a_step(workload) == pytest.approx(a_step(reference), rel=1e-5)


def test_a_change_that_fails_half_way_is_undone_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    workload, reference = a_workload(model="cnn"), a_workload(model="cnn")
    assert a_step(workload) == a_step(reference)
    move = workload.model.to
    calls: list[int] = []

    def move_then_fail(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        moved = move(*args, **kwargs)
        if len(calls) == 1:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return moved

    monkeypatch.setattr(workload.model, "to", move_then_fail)
    with pytest.raises(RuntimeError, match="allocate"):
        reconfigure(workload, channels_last=True, optimizer_impl="loop")
    assert layout_of_weights(workload) == {False}
    assert workload._optimizer.param_groups[0]["foreach"] is None
    assert a_step(workload) == pytest.approx(a_step(reference), rel=1e-4)


def test_a_loader_that_cannot_be_opened_leaves_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = a_workload()
    monkeypatch.setattr("harness.train.workload.open_loader", raising(OSError("too many processes")))
    with pytest.raises(OSError, match="too many processes"):
        reconfigure(workload, batch_size=4)
    assert workload.settings.batch_size == 8
    assert workload.next_batch()[0].shape[0] == 8


def test_a_workload_that_cannot_be_built_closes_its_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    monkeypatch.setattr("harness.data.loading.BatchLoader.close", lambda self: closed.append(1))
    with pytest.raises(SettingError):
        a_workload(model="rnn", sequence_length=16, channels_last=True)
    assert closed


def test_closing_twice_is_harmless() -> None:
    workload = a_workload()
    workload.close()
    workload.close()


COMPILER = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own, on the way to its compiler
    pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler"),
]


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=COMPILER)])
def test_a_compiled_model_trains_alike(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without generating code for the CPU, which takes 13 s, and with it."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    workload, reference = a_workload(), a_workload()
    reconfigure(workload, compile=True)
    reference.next_batch()
    for _ in range(3):
        assert a_step(workload) == pytest.approx(a_step(reference), rel=1e-3)
    reconfigure(workload, compile=False)
    assert a_step(workload) == pytest.approx(a_step(reference), rel=1e-3)


def test_nodes_that_are_kept_may_meet_gradients_of_another_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []
    monkeypatch.setattr(graph, "set_warn_on_accumulate_grad_stream_mismatch", calls.append, raising=False)
    a_workload()
    assert calls == []
    a_workload(a_device(FAKE_FACTS))
    assert calls == [False]
