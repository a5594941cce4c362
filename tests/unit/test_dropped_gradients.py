"""Gradients that a script computes and drops: their batches count in no step."""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.attach_factories import Recorded, record_each_evaluation, steps_of

BATCH, BATCHES = 4, 20


@pytest.fixture(autouse=True)
def every_evaluation_has_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    record_each_evaluation(monkeypatch)


class Parts:
    """A model, its optimizer, and data of `BATCHES` batches."""

    def __init__(self) -> None:
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.data = torch.randn(BATCH * BATCHES, 4)

    def loader(self, size: int = BATCH) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(TensorDataset(self.data), batch_size=size)

    def compute(self, inputs: Tensor) -> None:
        self.model(inputs).square().mean().backward()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


def watched(home: Path, train: Callable[[Parts], None]) -> Recorded:
    return steps_of(home, partial(train, Parts()))


@pytest.mark.parametrize("has_loader", [True, False])
@pytest.mark.parametrize("dropped", [{10}, {2}, {10, 11, 12}, {4, 8, 12, 19}])
def test_a_batch_that_is_dropped_after_its_backward_pass_counts_no_samples(
    tmp_path: Path, dropped: set[int], has_loader: bool
) -> None:
    def train(parts: Parts) -> None:
        batches = (inputs for (inputs,) in parts.loader()) if has_loader else iter(parts.data.split(BATCH))
        for number, inputs in enumerate(batches, start=1):
            parts.compute(inputs)
            if number in dropped:
                parts.optimizer.zero_grad()
                continue
            parts.update()

    log = watched(tmp_path, train)
    assert log.samples == [BATCH] * (BATCHES - len(dropped))
    assert log.unexplained_gaps_ns() == {}
    assert log.evaluations_ns == {}


def test_a_batch_counts_no_samples_if_the_next_iteration_clears_its_gradients(tmp_path: Path) -> None:
    def train(parts: Parts) -> None:
        for number, (inputs,) in enumerate(parts.loader()):
            parts.optimizer.zero_grad()
            parts.compute(inputs)
            if number % 5 != 3:
                parts.optimizer.step()

    assert watched(tmp_path, train).samples == [BATCH] * 16


def test_dropped_micro_batches_count_no_samples(tmp_path: Path) -> None:
    def train(parts: Parts) -> None:
        for number, (inputs,) in enumerate(parts.loader(), start=1):
            parts.compute(inputs)
            if number == 8:
                parts.optimizer.zero_grad()
            elif number % 2 == 0:
                parts.update()

    assert watched(tmp_path, train).samples == [2 * BATCH] * 9


def test_micro_batches_count_if_their_gradients_are_kept_elsewhere(tmp_path: Path) -> None:
    def train(parts: Parts) -> None:
        weights = list(parts.model.parameters())
        batches = iter(parts.loader())
        for _ in range(BATCHES // 2):
            sums = [torch.zeros_like(weight) for weight in weights]
            for _ in range(2):
                parts.optimizer.zero_grad()
                parts.compute(next(batches)[0])
                sums = [
                    total + (0 if weight.grad is None else weight.grad)
                    for total, weight in zip(sums, weights, strict=True)
                ]
            for weight, total in zip(weights, sums, strict=True):
                weight.grad = total
            parts.optimizer.step()

    assert watched(tmp_path, train).samples == [2 * BATCH] * (BATCHES // 2)


@pytest.mark.parametrize("has_new_loaders", [False, True])
def test_micro_batches_that_are_left_at_the_end_of_each_pass_count_in_no_step(
    tmp_path: Path, has_new_loaders: bool
) -> None:
    def train(parts: Parts) -> None:
        loader = parts.loader()
        for _ in range(5):
            parts.optimizer.zero_grad()
            for number, (inputs,) in enumerate(parts.loader() if has_new_loaders else loader, start=1):
                parts.compute(inputs)
                if number % 12 == 0:
                    parts.update()

    assert watched(tmp_path, train).samples == [12 * BATCH] * 5


def test_batches_of_several_passes_count_if_their_gradients_are_kept_elsewhere(tmp_path: Path) -> None:
    def train(parts: Parts) -> None:
        weight = parts.model.weight
        for _ in range(3):
            total = torch.zeros_like(weight)
            for _ in range(2):
                for (inputs,) in parts.loader(2 * BATCH):
                    parts.optimizer.zero_grad()
                    parts.compute(inputs)
                    assert weight.grad is not None
                    total += weight.grad
            weight.grad = total
            parts.optimizer.step()

    assert watched(tmp_path, train).samples == [2 * BATCH * BATCHES] * 3


def test_gradients_at_weights_nearby_are_for_the_same_batch(tmp_path: Path) -> None:
    def train(parts: Parts) -> None:
        for number, (inputs,) in enumerate(parts.loader()):
            if number % 4 == 3:
                parts.compute(inputs)
                parts.optimizer.zero_grad()
            parts.compute(inputs)
            parts.update()

    assert watched(tmp_path, train).samples == [BATCH] * BATCHES


@pytest.mark.parametrize("size", [BATCH, 1])
def test_a_pass_for_fisher_information_between_two_trainings_belongs_to_no_step(
    tmp_path: Path, size: int
) -> None:
    def train(parts: Parts) -> None:
        for _ in range(2):
            for (inputs,) in parts.loader():
                parts.optimizer.zero_grad()
                parts.compute(inputs)
                parts.optimizer.step()
            for (inputs,) in parts.loader(size):
                parts.model.zero_grad()
                parts.compute(inputs)

    log = watched(tmp_path, train)
    assert log.samples == [BATCH] * 2 * BATCHES
    assert log.evaluations_ns.keys() >= {BATCHES + 1}
    assert log.unexplained_gaps_ns() == {}
    step = log.steps[BATCHES]
    assert 0 < (step.forward_ns or 0) + (step.backward_ns or 0) < step.step_ns


def test_the_dropped_batches_of_two_loaders_count_no_samples(tmp_path: Path) -> None:
    def train(parts: Parts) -> None:
        loaders = parts.loader(), parts.loader(3)
        for number, ((inputs,), (others,)) in enumerate(zip(*loaders, strict=False), start=1):
            parts.optimizer.zero_grad()
            loss = parts.model(inputs).square().mean() + parts.model(others).square().mean()
            loss.backward()
            if number not in (4, 9, 10):
                parts.optimizer.step()

    assert watched(tmp_path, train).samples == [BATCH + 3] * (BATCHES - 3)


def test_a_batch_that_is_skipped_before_gradients_are_dropped_is_left_out_once(tmp_path: Path) -> None:
    def train(parts: Parts) -> None:
        taken = 0
        for number, (inputs,) in enumerate(parts.loader(), start=1):
            if number == 9:
                continue
            parts.compute(inputs)
            if number == 10:
                parts.optimizer.zero_grad()
                continue
            taken += 1
            if taken % 2 == 0:
                parts.update()

    assert watched(tmp_path, train).samples == [2 * BATCH] * (BATCHES // 2 - 1)


def test_micro_batches_of_a_model_count_in_no_step_of_its_copy(tmp_path: Path) -> None:
    def train(parts: Parts) -> None:
        for number in range(6):
            parts.compute(torch.ones(3, 4))
            if number % 2:
                parts.update()
        parts.compute(torch.ones(3, 4))
        parts.optimizer.zero_grad()
        parts.model = deepcopy(parts.model)
        parts.optimizer = torch.optim.SGD(parts.model.parameters(), lr=0.01)
        for number in range(6):
            parts.compute(torch.ones(5, 4))
            if number % 2:
                parts.update()

    assert watched(tmp_path, train).samples == [6, 6, 6, 10, 10, 10]
