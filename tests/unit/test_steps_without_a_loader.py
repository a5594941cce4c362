"""Steps of a script that makes its batches by itself, and loaders that only evaluate."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.attach_factories import attached, recorded
from tests.script_loops import BATCH, EVENTFUL, EXTRAS, SAMPLES, STEPS, Loop, watched

_EVALUATED, _EVALUATIONS = 7, (5, 12)


def test_they_are_plain_and_have_no_data_wait(tmp_path: Path) -> None:
    loop = Loop(has_loader=False)
    plain, rows, gaps_ns = watched(tmp_path, loop)
    assert plain >= STEPS // 2
    assert [row.step for row in rows] == list(range(1, STEPS + 1))
    assert [row.loss for row in rows] == loop.losses
    assert [row.samples for row in rows] == [BATCH] * (STEPS - 1) + [SAMPLES % BATCH]
    assert not gaps_ns
    for row in rows[1:]:  # The first one began before the watch.
        assert row.data_wait_ns == 0
        assert min(row.forward_ns, row.backward_ns, row.optimizer_ns) > 0
        assert row.forward_ns + row.backward_ns + row.optimizer_ns <= row.step_ns


@pytest.mark.parametrize("extra", EXTRAS)
def test_whatever_else_happens_no_step_and_no_time_is_lost(tmp_path: Path, extra: str) -> None:
    bare = Loop(extra, has_loader=False)
    bare.train()
    loop = Loop(extra, has_loader=False)
    plain, rows, gaps_ns = watched(tmp_path, loop)
    assert 0 < plain < STEPS
    assert [row.step for row in rows] == list(range(1, STEPS + 1))
    assert loop.losses == bare.losses
    assert not gaps_ns.keys() - {EVENTFUL, EVENTFUL + 1}
    before, after = rows[EVENTFUL - 3], rows[-2]
    assert before.samples == after.samples == BATCH
    assert min(after.forward_ns, after.backward_ns, after.optimizer_ns) > 0


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


@pytest.mark.parametrize("evaluate", [until_called, until_loaded])
@pytest.mark.parametrize("evaluations", [(0, *_EVALUATIONS), _EVALUATIONS])
def test_a_loader_that_only_evaluates_and_is_left_early_feeds_no_step(
    tmp_path: Path,
    evaluate: Callable[[DataLoader[tuple[torch.Tensor, ...]], nn.Module], None],
    evaluations: tuple[int, ...],
) -> None:
    loop = Loop()
    loader = DataLoader(loop.data, batch_size=_EVALUATED)
    with attached(tmp_path) as (session, folder, guard):
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


def test_a_loader_feeds_the_training_whose_batches_are_evaluated_as_well(tmp_path: Path) -> None:
    loop = Loop()
    with attached(tmp_path) as (session, folder, guard):
        for (inputs,) in DataLoader(loop.data, batch_size=BATCH):
            loop.model.eval()
            with torch.no_grad():
                labels = loop.model(inputs)
            loop.model.train()
            (loop.model(inputs) - labels).square().mean().backward()
            loop.optimizer.step()
        session.end(None)
        assert guard.message is None
    log = recorded(folder)
    assert [row.samples for row in log.steps][1:-1] == [BATCH] * (STEPS - 2)
    assert log.values["batch_size"] == BATCH
