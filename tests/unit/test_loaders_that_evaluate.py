"""Whether a loader feeds the training, where others only evaluate, or come later."""

import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.attach_factories import attached, record_each_evaluation, recorded
from tests.script_loops import BATCH, SAMPLES, STEPS, Loop

_EVALUATED, _EVALUATIONS, _PAUSE_S = 7, (5, 12), 0.05


def test_a_loader_that_feeds_later_steps_is_found(tmp_path: Path) -> None:
    loop = Loop(has_loader=False)
    with attached(tmp_path) as (session, folder, guard):
        loop.train()
        loop.has_loader = True
        plain = loop.train(session)
        session.end(None)
        assert guard.message is None
    assert plain >= STEPS // 2
    log = recorded(folder)
    assert [row.data_wait_ns > 0 for row in log.steps] == [False] * STEPS + [True] * STEPS
    assert log.values["batch_size"] == BATCH


def until_called(loader: DataLoader[tuple[torch.Tensor, ...]], model: nn.Module) -> None:
    """Leave the loop after a call."""
    for number, (inputs,) in enumerate(loader):
        model(inputs)
        if number == 1:
            return


def until_loaded(loader: DataLoader[tuple[torch.Tensor, ...]], model: nn.Module) -> None:
    """Leave the loop after a batch that no call follows."""
    for number, (inputs,) in enumerate(loader):
        if number == 1:
            return
        model(inputs)


def test_a_loader_whose_batches_have_two_updates_each_after_a_call_of_a_target_is_found(
    tmp_path: Path,
) -> None:
    loop = Loop()
    target = nn.Linear(4, 2)
    with attached(tmp_path) as (session, folder, guard):
        for (inputs,) in DataLoader(loop.data, batch_size=BATCH):
            with torch.no_grad():
                target(inputs)
            for _ in range(2):
                loop.model(inputs).square().mean().backward()
                loop.optimizer.step()
        session.end(None)
        assert guard.message is None
    log = recorded(folder)
    assert [row.data_wait_ns > 0 for row in log.steps[2:]] == [True, False] * (STEPS - 1)
    assert log.values["batch_size"] == BATCH


def test_two_loaders_that_feed_each_step_are_found_and_a_batch_before_is_of_none(
    tmp_path: Path,
) -> None:
    loop = Loop()
    held_out = DataLoader(loop.data, batch_size=_EVALUATED)
    with attached(tmp_path) as (session, folder, guard):
        next(iter(DataLoader(loop.data, batch_size=3)))
        for (inputs,) in islice(DataLoader(loop.data, batch_size=BATCH), STEPS - 1):
            (others,) = next(iter(held_out))
            loop.model(torch.cat([inputs, others])).square().mean().backward()
            loop.optimizer.step()
        session.end(None)
        assert guard.message is None
    log = recorded(folder)
    assert [row.samples for row in log.steps[1:]] == [BATCH + _EVALUATED] * (STEPS - 2)
    assert log.steps[0].samples == _EVALUATED  # The first batch may have been for a test.
    assert "batch_size" not in log.values  # Of two loaders none is the training's.


@pytest.mark.slow
@pytest.mark.parametrize("has_two_lines", [False, True])
@pytest.mark.parametrize("evaluate", [until_called, until_loaded])
@pytest.mark.parametrize("evaluations", [(0, *_EVALUATIONS), _EVALUATIONS])
def test_a_loader_that_only_evaluates_and_is_left_early_feeds_no_step(
    tmp_path: Path,
    evaluate: Callable[[DataLoader[tuple[torch.Tensor, ...]], nn.Module], None],
    evaluations: tuple[int, ...],
    *,
    has_two_lines: bool,
) -> None:
    loop = Loop()
    loader = DataLoader(loop.data, batch_size=_EVALUATED)
    with attached(tmp_path) as (session, folder, guard):
        if has_two_lines:
            session.begin([loop.model], [loop.optimizer])
        for step, inputs in enumerate(loop.data.tensors[0].split(BATCH)):
            if step in evaluations:
                loop.model.eval()
                with torch.no_grad():
                    evaluate(loader, loop.model)
                loop.model.train()
            loop.model(inputs).square().mean().backward()
            loop.optimizer.step()
        session.end(None)
        assert guard.message is None
    log = recorded(folder)
    assert [row.samples for row in log.steps] == [BATCH] * (STEPS - 1) + [SAMPLES % BATCH]
    assert {row.data_wait_ns for row in log.steps} == {0}
    assert "batch_size" not in log.values


@pytest.mark.parametrize("every", [1, 2])
def test_batches_that_a_method_evaluates_between_those_of_the_training_are_of_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    record_each_evaluation(monkeypatch)
    loop = Loop()
    loader, held_out = (DataLoader(loop.data, batch_size=size) for size in (BATCH, _EVALUATED))
    with attached(tmp_path) as (session, folder, guard):
        for epoch in range(4):
            for (inputs,) in loader:
                loop.model(inputs).square().mean().backward()
                loop.optimizer.step()
            for (inputs,) in held_out if epoch % every == 0 else []:
                with torch.no_grad():
                    loop.model.forward(inputs)
        session.end(None)
        assert guard.message is None
    log = recorded(folder)
    assert [row.samples for row in log.steps] == ([BATCH] * (STEPS - 1) + [SAMPLES % BATCH]) * 4
    assert list(log.evaluations_ns) == [STEPS * epoch + 1 for epoch in range(1, 5, every)]
    assert log.unexplained_gaps_ns() == {}


@pytest.mark.parametrize("is_in_epoch", [True, False])
def test_batches_that_are_evaluated_in_training_mode_are_of_no_step(
    tmp_path: Path, is_in_epoch: bool
) -> None:
    """Between two batches of the training, or after the end of an epoch."""
    loop = Loop()

    def evaluate() -> None:
        for (inputs,) in DataLoader(loop.data, batch_size=_EVALUATED):
            loop.model(inputs)

    with attached(tmp_path) as (session, folder, guard):
        for _ in range(3):
            for step, (inputs,) in enumerate(DataLoader(loop.data, batch_size=BATCH), start=1):
                loop.optimizer.zero_grad()
                loop.model(inputs).square().mean().backward()
                loop.optimizer.step()
                if is_in_epoch and step in _EVALUATIONS:
                    evaluate()
            if not is_in_epoch:
                evaluate()
        session.end(None)
        assert guard.message is None
    log = recorded(folder)
    assert log.samples == 3 * ([BATCH] * (STEPS - 1) + [SAMPLES - BATCH * (STEPS - 1)])


@pytest.mark.parametrize("is_first", [False, True])
def test_an_attack_on_the_model_in_evaluation_mode_is_of_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_first: bool
) -> None:
    record_each_evaluation(monkeypatch)
    loop = Loop()
    loader, held_out = (DataLoader(loop.data, batch_size=size) for size in (BATCH, _EVALUATED))
    losses: list[float] = []

    def train() -> None:
        loop.model.train()
        for (inputs,) in loader:
            loop.optimizer.zero_grad()
            loss = loop.model(inputs).square().mean()
            loss.backward()
            loop.optimizer.step()
            losses.append(loss.item())

    def attack() -> None:
        loop.model.eval()
        for (inputs,) in held_out:
            attacked = inputs.requires_grad_()
            loop.model(attacked).square().sum().backward()
            assert attacked.grad is not None
            loop.model(inputs + attacked.grad.sign())

    with attached(tmp_path) as (session, folder, guard):
        if is_first:
            attack()
        for _ in range(3):
            train()
            attack()
        session.end(None)
        assert guard.message is None
    log = recorded(folder)
    assert [row.samples for row in log.steps] == ([BATCH] * (STEPS - 1) + [SAMPLES % BATCH]) * 3
    assert [row.loss for row in log.steps] == pytest.approx(losses)
    assert list(log.evaluations_ns) == [1] * is_first + [STEPS * epoch + 1 for epoch in range(1, 4)]
    assert log.unexplained_gaps_ns() == {}


@pytest.mark.parametrize("evaluated", [_EVALUATED, SAMPLES])
def test_an_attack_is_of_no_step_where_the_model_is_called_after_each_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, evaluated: int
) -> None:
    record_each_evaluation(monkeypatch)
    loop = Loop()
    loader, held_out = (DataLoader(loop.data, batch_size=size) for size in (BATCH, evaluated))

    def train() -> None:
        loop.model.train()
        for (inputs,) in loader:
            loop.optimizer.zero_grad()
            loop.model(inputs).square().mean().backward()
            loop.optimizer.step()
            loop.model(inputs)

    def attack() -> None:
        loop.model.eval()
        time.sleep(_PAUSE_S)
        for (inputs,) in held_out:
            attacked = inputs.requires_grad_()
            loop.model(attacked).square().sum().backward()
            loop.model(inputs)

    with attached(tmp_path) as (session, folder, guard):
        for _ in range(3):
            train()
            attack()
        session.end(None)
        assert guard.message is None
    log = recorded(folder)
    assert [row.samples for row in log.steps] == ([BATCH] * (STEPS - 1) + [SAMPLES % BATCH]) * 3
    assert list(log.evaluations_ns) == [2, *(STEPS * epoch + 1 for epoch in range(1, 4))]
    assert min(list(log.evaluations_ns.values())[1:]) > 1e9 * _PAUSE_S
    assert log.unexplained_gaps_ns() == {}


def test_a_loader_that_trains_in_evaluation_mode_beside_another_one_keeps_its_samples(tmp_path: Path) -> None:
    loop = Loop()
    loop.model.eval()
    loaders = [DataLoader(loop.data, batch_size=size) for size in (BATCH, _EVALUATED)]
    with attached(tmp_path) as (session, folder, guard):
        for batches in zip(*loaders, strict=False):
            for (inputs,) in batches:
                loop.model(inputs).square().mean().backward()
            loop.optimizer.step()
            loop.optimizer.zero_grad()
        session.end(None)
        assert guard.message is None
    samples = {row.samples for row in recorded(folder).steps[1:-1]}
    assert samples == {BATCH + _EVALUATED}


def test_a_short_batch_at_the_end_of_an_epoch_that_a_script_skips_is_no_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_each_evaluation(monkeypatch)
    loop = Loop()
    loader = DataLoader(loop.data, batch_size=BATCH)
    with attached(tmp_path) as (session, folder, guard):
        for _ in range(3):
            for (inputs,) in loader:
                if len(inputs) == BATCH:
                    loop.model(inputs).square().mean().backward()
                    loop.optimizer.step()
        session.end(None)
        assert guard.message is None
    log = recorded(folder)
    assert len(log.steps) == (STEPS - 1) * 3
    assert log.evaluations_ns == {}


@pytest.mark.parametrize("steps_before", [0, 3])
def test_a_loader_feeds_the_training_whose_batches_are_evaluated_as_well(
    tmp_path: Path, steps_before: int
) -> None:
    loop = Loop()
    teacher = nn.Linear(4, 2).eval()
    with attached(tmp_path) as (session, folder, guard):
        for _ in range(steps_before):
            loop.model(torch.ones(2, 4)).square().mean().backward()
            loop.optimizer.step()
        for (inputs,) in DataLoader(loop.data, batch_size=BATCH):
            with torch.no_grad():
                labels = teacher(inputs)
            (loop.model(inputs) - labels).square().mean().backward()
            loop.optimizer.step()
        session.end(None)
        assert guard.message is None
    log = recorded(folder)
    assert [row.samples for row in log.steps][steps_before:] == [BATCH] * (STEPS - 1) + [SAMPLES % BATCH]
    assert all(row.data_wait_ns > 0 for row in log.steps[steps_before + 1 :])
    assert log.values["batch_size"] == BATCH
