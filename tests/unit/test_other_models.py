"""Test models that a script calls without training them: averages of the weights, teachers."""

import copy
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

from tests.attach_factories import Recorded, steps_of

_SAMPLES, _BATCH, _EVALUATED = 24, 4, 12
_STEPS = _SAMPLES // _BATCH


class _Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.layers(inputs)
        return result


def _loader(samples: int) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(torch.ones(samples, 4)), batch_size=_BATCH)


def _train_and_evaluate(
    other: Callable[[nn.Module], nn.Module],
    around_loop: Callable[[], AbstractContextManager[Any]],
    around_call: Callable[[], AbstractContextManager[Any]],
) -> None:
    """Take two epochs, each with an evaluation of another model after it."""
    model = _Network()
    evaluated = other(model).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        for (inputs,) in _loader(_SAMPLES):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
        with around_loop():
            for (inputs,) in _loader(_EVALUATED):
                with around_call():
                    evaluated(inputs)


def _expect_training_alone(log: Recorded) -> None:
    assert [row.samples for row in log.steps] == [_BATCH] * 2 * _STEPS
    assert log.evaluations_ns
    assert not log.unexplained_gaps_ns()


@pytest.mark.slow
@pytest.mark.parametrize("without_gradients", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("other", [copy.deepcopy, AveragedModel])
def test_an_evaluation_of_a_model_that_is_not_trained_is_of_no_step(
    tmp_path: Path,
    other: Callable[[nn.Module], nn.Module],
    without_gradients: Callable[[], AbstractContextManager[Any]],
) -> None:
    _expect_training_alone(
        steps_of(tmp_path / "loop", lambda: _train_and_evaluate(other, without_gradients, nullcontext))
    )
    _expect_training_alone(
        steps_of(tmp_path / "call", lambda: _train_and_evaluate(other, nullcontext, without_gradients))
    )


def test_a_model_of_another_class_is_evaluated_where_batches_are_loaded_without_gradients(
    tmp_path: Path,
) -> None:
    def other(_model: nn.Module) -> nn.Module:
        return nn.Linear(4, 2)

    _expect_training_alone(steps_of(tmp_path, lambda: _train_and_evaluate(other, torch.no_grad, nullcontext)))


def test_a_call_of_a_teacher_belongs_to_the_step_that_learns_from_it(tmp_path: Path) -> None:
    def train() -> None:
        model, teacher = _Network(), _Network().eval()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for (inputs,) in _loader(_SAMPLES):
            with torch.no_grad():
                target = teacher(inputs)
            loss = nn.functional.mse_loss(model(inputs), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    log = steps_of(tmp_path, train)
    assert [row.samples for row in log.steps] == [_BATCH] * _STEPS
    assert not log.evaluations_ns
    assert not log.unexplained_gaps_ns()


class _WaitingNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.is_called, self.may_return = threading.Event(), threading.Event()

    def forward(self, inputs: Tensor) -> Tensor:
        self.is_called.set()
        self.may_return.wait()
        return inputs


def test_a_model_in_another_thread_hides_no_call_of_the_one_that_begins_to_train(tmp_path: Path) -> None:
    model, other = _Network(), _WaitingNetwork()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    thread = threading.Thread(target=other, args=(torch.ones(1, 4),))

    def train() -> None:
        thread.start()
        other.is_called.wait()
        for _ in range(_STEPS):
            optimizer.zero_grad()
            model(torch.ones(_BATCH, 4)).square().mean().backward()
            optimizer.step()
        other.may_return.set()
        thread.join()

    log = steps_of(tmp_path, train)
    assert [row.samples for row in log.steps] == [_BATCH] * _STEPS
    assert all(row.forward_ns for row in log.steps)
