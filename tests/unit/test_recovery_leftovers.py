"""After a step that ran out of memory nothing of it is left: tensors, gradients, scale, half an update."""

import gc
import json
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from harness.analysis.oom.report import OomPhase, report_from_json
from harness.device.testing.device import FAKE_FACTS, FakeDevice
from harness.records.run import EventKind
from harness.train.recovery import BASELINE_TOLERANCE_BYTES, Baselines
from harness.watch.oom.errors import NoRecoveryError
from tests.recovery_factories import LIMIT, TEXT, Bench, in_a_step
from tests.train_factories import raising

pytestmark = pytest.mark.slow


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


class Budget(TorchDispatchMode):
    """Lets so many bytes be made by operators while entered, then raises as CUDA's allocator does."""

    def __init__(self, budget_bytes: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not typed it
        self.left_bytes = budget_bytes

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.left_bytes -= result.nbytes
            if self.left_bytes < 0:
                raise torch.OutOfMemoryError(TEXT)
        return result


def weights_of(bench: Bench) -> list[Tensor]:
    return [weight.detach().clone() for weight in bench.workload.model.parameters()]


@contextmanager
def kept(bench: Bench) -> Iterator[list["weakref.ref[Tensor]"]]:
    """The activations that the model's layers make, by weak reference."""
    made: list[weakref.ref[Tensor]] = []

    def note(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        made.append(weakref.ref(output))

    layers = [m for m in bench.workload.model.modules() if isinstance(m, nn.Linear)]
    handles = [layer.register_forward_hook(note) for layer in layers]
    yield made
    for handle in handles:
        handle.remove()


def test_nothing_that_the_failed_step_made_is_alive_after_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, oom_policy="skip")
    backward = bench.workload.backward
    weights: list[list[Tensor]] = []

    def fail(loss: Tensor) -> None:
        backward(loss)
        bench.workload.backward = backward
        raise torch.OutOfMemoryError(TEXT)

    def arm() -> None:
        bench.workload.backward = fail
        weights.append(weights_of(bench))

    gc.disable()
    try:
        with kept(bench) as made:
            bench.acts[20] = [arm]

            def look() -> None:
                gone = made[-6:]
                assert all(reference() is None for reference in gone)
                assert all(weight.grad is None for weight in bench.workload.model.parameters())
                assert all(map(torch.equal, weights[0], weights_of(bench)))

            changed = bench.steps.boundary.changed

            def checked(step: int) -> None:
                look()
                changed(step)

            bench.steps.boundary.changed = checked  # type: ignore[method-assign]
            assert bench.train() == LIMIT
    finally:
        gc.enable()


def test_a_failed_share_of_a_step_leaves_no_gradient_and_no_loss(tmp_path: Path) -> None:
    bench = Bench(tmp_path, oom_policy="skip", grad_accumulation=3, amp="bf16")
    forward = bench.workload.forward
    calls: list[int] = []

    def second_fails(*batch: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == 2:
            bench.workload.forward = forward
            raise torch.OutOfMemoryError(TEXT)
        return forward(*batch)

    bench.acts[20] = [lambda: setattr(bench.workload, "forward", second_fails)]
    assert bench.train() == LIMIT
    assert bench.workload._is_fresh


def test_fp16_goes_on_with_its_scale(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FakeDevice(FAKE_FACTS), oom_policy="skip", amp="fp16")
    in_a_step(bench, 20, raising(torch.OutOfMemoryError(TEXT)))
    scales: list[float] = []
    bench.acts[20].append(lambda: scales.append(bench.workload._scaler.get_scale()))
    bench.acts[21] = [lambda: scales.append(bench.workload._scaler.get_scale())]
    assert bench.train() == LIMIT
    assert scales[0] == scales[1]


def out_of_budget(bench: Bench, step: int, budget_bytes: int) -> None:
    """Let the update of one step make so many bytes and no more."""

    def arm() -> None:
        update = bench.workload.update

        def within_budget() -> None:
            bench.workload.update = update
            with Budget(budget_bytes):
                update()

        bench.workload.update = within_budget

    bench.acts.setdefault(step, []).append(arm)


def test_the_optimizers_first_step_is_taken_again_when_only_its_state_was_being_made(tmp_path: Path) -> None:
    bench = Bench(tmp_path, oom_policy="skip", optimizer_impl="loop")
    out_of_budget(bench, 1, 100_000)
    before = weights_of(bench)
    after: list[list[Tensor]] = []
    bench.acts[2] = [lambda: after.append(weights_of(bench))]
    assert bench.train() == LIMIT
    report = report_from_json(bench.reports[0].report)
    assert report.facts.request.phase is OomPhase.OPTIMIZER
    assert report.facts.is_first_update
    assert {float(kept["step"]) for kept in bench.workload.optimizer.state.values()} == {float(LIMIT)}
    assert not all(map(torch.equal, before, after[0]))


def test_an_update_that_failed_half_way_is_the_end(tmp_path: Path) -> None:
    bench = Bench(tmp_path, oom_policy="skip", optimizer_impl="loop")
    out_of_budget(bench, 20, 100_000)
    with pytest.raises(NoRecoveryError, match="some may be updated and some not"):
        bench.train()


def test_memory_that_stays_taken_is_said(tmp_path: Path) -> None:
    bench = Bench(tmp_path, oom_policy="skip")

    def leak() -> Any:
        bench.device.allocator.allocate(100 << 20)
        raise torch.OutOfMemoryError(TEXT)

    in_a_step(bench, 20, leak)
    bench.acts[20].append(lambda: bench.memory.restart(1))
    bench.train()
    (failure,) = bench.events(EventKind.OOM)
    assert failure.message.endswith("100 MiB more than before the step stay allocated.")
    assert json.loads(failure.detail)["is_back"] is False


def test_what_is_left_is_not_blamed_on_the_step_when_the_level_before_it_is_old(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.memory, "age_ns", lambda _end_ns: 1_500_000_000)

    def fail() -> None:
        bench.device.allocator.allocate(100 << 20)
        raise torch.OutOfMemoryError(TEXT)

    in_a_step(bench, 20, fail)
    bench.request(18, batch_size=32)
    bench.train()
    (failure,) = bench.events(EventKind.OOM)
    assert "The memory of the step that stays allocated is unknown" in failure.message
    assert "100 MiB more than at the newest reading, 1.5 s of training before" in failure.message
    assert json.loads(failure.detail)["is_back"] is None


@pytest.mark.parametrize(
    ("levels", "is_back"),
    [
        (Baselines(1 << 30, (1 << 30) + (50 << 20)), True),
        (Baselines(1 << 30, (1 << 30) + (60 << 20)), False),
        (Baselines(10 << 20, (10 << 20) + BASELINE_TOLERANCE_BYTES), True),
        (Baselines(10 << 20, (10 << 20) + BASELINE_TOLERANCE_BYTES + 1), False),
        (Baselines(100, 100 + BASELINE_TOLERANCE_BYTES + 1, 1), None),
        (Baselines(100, 100, 1), True),
        (Baselines(None, 1), None),
        (Baselines(1, None), None),
    ],
)
def test_the_level_counts_as_back_within_a_twentieth_or_8_mib(
    levels: Baselines, is_back: bool | None
) -> None:
    assert levels.is_back is is_back
