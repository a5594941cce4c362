"""Batches that a script skips: before the call of its model, or after it, as where the loss is not finite."""

import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.attach_factories import Recorded, steps_of

BATCH, BATCHES = 4, 20


class Parts:
    """A model, its optimizer, and a loader: its last batch has 2 samples, all others have `BATCH`."""

    def __init__(self) -> None:
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.loader = DataLoader(TensorDataset(torch.randn(BATCH * BATCHES - 2, 4)), batch_size=BATCH)

    def loss(self, inputs: Tensor) -> Tensor:
        loss: Tensor = self.model(inputs).square().mean()
        return loss

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


def watched(home: Path, train: Callable[[Parts], None]) -> Recorded:
    return steps_of(home, partial(train, Parts()))


@pytest.mark.parametrize("skipped", [{10}, {2}, {10, 11, 12}, {4, 8, 12, 19}])
def test_a_skipped_batch_has_its_time_in_the_next_step_and_counts_no_samples(
    tmp_path: Path, skipped: set[int]
) -> None:
    def train(parts: Parts) -> None:
        for number, (inputs,) in enumerate(parts.loader, start=1):
            loss = parts.loss(inputs)
            if number in skipped:
                continue
            loss.backward()
            parts.update()

    log = watched(tmp_path, train)
    steps = BATCHES - len(skipped)
    assert log.samples == [BATCH] * (steps - 1) + [BATCH - 2]
    assert log.unexplained_gaps_ns() == {}
    assert log.evaluations_ns == {}


@pytest.mark.parametrize("joined", [True, False])
def test_the_batches_of_several_loaders_that_are_skipped_together_count_no_samples(
    tmp_path: Path, joined: bool
) -> None:
    def train(parts: Parts) -> None:
        others = DataLoader(TensorDataset(torch.randn(3 * BATCHES, 4)), batch_size=3)
        for number, ((inputs,), (more,)) in enumerate(zip(parts.loader, others, strict=True)):
            both = [torch.cat([inputs, more])] if joined else [inputs, more]
            loss = torch.stack([parts.loss(one) for one in both]).sum()
            if number % 5 == 3:
                continue
            loss.backward()
            parts.update()

    log = watched(tmp_path, train)
    assert log.samples == [7] * 15 + [5]
    assert log.unexplained_gaps_ns() == {}


def test_a_skipped_micro_batch_counts_no_samples(tmp_path: Path) -> None:
    def train(parts: Parts) -> None:
        for number, (inputs,) in enumerate(parts.loader, start=1):
            loss = parts.loss(inputs)
            if number != 7:
                loss.backward()
            if number % 2 == 0:
                parts.update()

    assert watched(tmp_path, train).samples == [8, 8, 8, 4, 8, 8, 8, 8, 8, 6]


@pytest.mark.parametrize("together", [2, 4])
def test_batches_with_one_backward_pass_for_several_are_all_trained_on(tmp_path: Path, together: int) -> None:
    def train(parts: Parts) -> None:
        losses = []
        for number, (inputs,) in enumerate(parts.loader, start=1):
            losses.append(parts.loss(inputs))
            if number % together == 0:
                torch.stack(losses).sum().backward()
                parts.update()
                losses.clear()

    steps = BATCHES // together - 2
    assert watched(tmp_path, train).samples[1:] == [BATCH * together] * steps + [BATCH * together - 2]


def test_a_batch_that_is_loaded_before_the_backward_pass_of_the_one_before_counts(tmp_path: Path) -> None:
    def train(parts: Parts) -> None:
        batches = iter(parts.loader)
        (inputs,) = next(batches)
        for _ in range(BATCHES - 1):
            loss = parts.loss(inputs)
            (inputs,) = next(batches)
            loss.backward()
            parts.update()

    log = watched(tmp_path, train)
    assert log.samples[1:-1] == [BATCH] * (BATCHES - 3)


def test_a_batch_of_another_loader_after_the_call_of_the_model_skips_none(tmp_path: Path) -> None:
    def train(parts: Parts) -> None:
        others = iter(DataLoader(TensorDataset(torch.randn(100, 4)), batch_size=3))
        for number, (inputs,) in enumerate(parts.loader):
            loss = parts.loss(inputs)
            if number % 5 == 4:
                (more,) = next(others)
                loss = loss + parts.loss(more)
            loss.backward()
            parts.update()

    assert watched(tmp_path, train).samples == [4, 4, 4, 4, 7] * 3 + [4, 4, 4, 4, 5]


@pytest.mark.parametrize("every", [2, 3, 6])
def test_a_batch_that_is_passed_over_counts_no_samples(tmp_path: Path, every: int) -> None:
    def train(parts: Parts) -> None:
        for number, (inputs,) in enumerate(parts.loader, start=1):
            if number > BATCHES // 2 and number % every == 0:
                continue
            parts.loss(inputs).backward()
            parts.update()

    log = watched(tmp_path, train)
    assert set(log.samples[:-1]) == {BATCH}
    assert log.samples[-1] in (BATCH, BATCH - 2)
    assert log.unexplained_gaps_ns() == {}


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("joined", [True, False])
def test_the_batches_of_several_loaders_that_are_passed_over_together_count_no_samples(
    tmp_path: Path, joined: bool, micro_batches: int
) -> None:
    def train(parts: Parts) -> None:
        others, taken = DataLoader(TensorDataset(torch.randn(3 * BATCHES, 4)), batch_size=3), 0
        for number, ((inputs,), (more,)) in enumerate(zip(parts.loader, others, strict=True), start=1):
            if number in (10, 15):
                continue
            both = [torch.cat([inputs, more])] if joined else [inputs, more]
            torch.stack([parts.loss(one) for one in both]).sum().backward()
            taken += 1
            if taken % micro_batches == 0:
                parts.update()

    steps = (BATCHES - 2) // micro_batches
    assert watched(tmp_path, train).samples == [7 * micro_batches] * (steps - 1) + [7 * micro_batches - 2]


def test_a_last_batch_that_is_passed_over_counts_no_samples_once_its_pass_is_gone(tmp_path: Path) -> None:
    def train(parts: Parts) -> None:
        for epoch in range(3):
            for (inputs,) in parts.loader:
                if epoch and len(inputs) < BATCH:
                    continue
                parts.loss(inputs).backward()
                parts.update()
            del inputs
            gc.collect()

    log = watched(tmp_path, train)
    assert log.samples == [BATCH] * (BATCHES - 1) + [BATCH - 2] + [BATCH] * 2 * (BATCHES - 1)


def test_a_micro_batch_that_is_passed_over_counts_no_samples(tmp_path: Path) -> None:
    def train(parts: Parts) -> None:
        count = 0
        for number, (inputs,) in enumerate(parts.loader, start=1):
            if number % 5 == 0:
                continue
            parts.loss(inputs).backward()
            count += 1
            if count % 2 == 0:
                parts.update()

    assert watched(tmp_path, train).samples == [8] * 8


@pytest.mark.parametrize("together", [2, 4])
def test_batches_that_are_loaded_at_once_for_one_call_each_count(tmp_path: Path, together: int) -> None:
    def train(parts: Parts) -> None:
        batches = iter(parts.loader)
        for _ in range(BATCHES // together):
            for inputs in [next(batches)[0] for _ in range(together)]:
                parts.loss(inputs).backward()
            parts.update()

    steps = BATCHES // together - 2
    assert watched(tmp_path, train).samples[1:] == [BATCH * together] * steps + [BATCH * together - 2]


def test_batches_that_each_call_takes_together_count(tmp_path: Path) -> None:
    def train(parts: Parts) -> None:
        batches = iter(parts.loader)
        for (inputs,) in batches:
            (more,) = next(batches)
            (parts.model(inputs).square().mean() + more.mean()).backward()
            parts.update()

    assert watched(tmp_path, train).samples[1:] == [2 * BATCH] * (BATCHES // 2 - 2) + [2 * BATCH - 2]
