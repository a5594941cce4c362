"""Scripts that compute the features of several batches without gradients, and then those of each batch again
with gradients, as OpenCLIP does to accumulate gradients."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.attach_factories import Recorded, record_each_evaluation, steps_of

_SAMPLES, _STEPS = 2, 20


@pytest.fixture(autouse=True)
def every_evaluation_has_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    record_each_evaluation(monkeypatch)


def a_loader(batches: int) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(torch.randn(batches * _SAMPLES, 4)), batch_size=_SAMPLES)


def features_cached(net: nn.Module, loader: DataLoader[tuple[Tensor, ...]], count: int) -> Iterator[Tensor]:
    """Yield the loss of every `count` batches."""
    batches, features = [], []
    for (inputs,) in loader:
        with torch.no_grad():
            features.append(net(inputs))
        batches.append(inputs)
        if len(batches) < count:
            continue
        losses = []
        for index, batch in enumerate(batches):
            others = features[:index] + features[index + 1 :]
            loss = torch.cat([net(batch), *others]).square().mean()
            loss.backward()
            losses.append(loss.detach())
        batches, features = [], []
        yield torch.stack(losses).mean()


def trained(home: Path, count: int, *, epochs: int = 1, rest: int = 0, validates: bool = False) -> Recorded:
    """Train with `count` batches in each step; `rest` batches at the end of each epoch are too few."""

    def train() -> None:
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        loader = a_loader(_STEPS * count + rest)
        for _ in range(epochs):
            for _ in features_cached(net, loader, count):
                optimizer.step()
                optimizer.zero_grad()
            if validates:
                net.eval()
                with torch.no_grad():
                    for (inputs,) in a_loader(3):
                        net(inputs)
                net.train()

    return steps_of(home, train)


@pytest.mark.parametrize("count", [2, 4])
def test_batches_that_are_computed_twice_belong_to_their_step(tmp_path: Path, count: int) -> None:
    log = trained(tmp_path, count)
    assert len(log.steps) == _STEPS
    assert {row.samples for row in log.steps[2:]} == {count * _SAMPLES}
    assert max(log.evaluations_ns, default=0) <= 3
    assert not {step for step in log.unexplained_gaps_ns() if step > 3}


def test_batches_that_are_too_few_for_a_step_are_evaluated(tmp_path: Path) -> None:
    log = trained(tmp_path, 4, epochs=2, rest=2)
    assert len(log.steps) == 2 * _STEPS
    assert {row.samples for row in log.steps[2:]} == {4 * _SAMPLES}
    assert {step for step in log.evaluations_ns if step > 3} == {_STEPS + 1, 2 * _STEPS + 1}


def test_a_validation_between_such_steps_is_left_out(tmp_path: Path) -> None:
    log = trained(tmp_path, 2, epochs=3, validates=True)
    assert len(log.steps) == 3 * _STEPS
    assert {row.samples for row in log.steps[2:]} == {2 * _SAMPLES}
    assert {step for step in log.evaluations_ns if step > 3} == {one * _STEPS + 1 for one in (1, 2, 3)}


def test_batches_that_are_not_trained_do_not_count(tmp_path: Path) -> None:
    def train() -> None:
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for number, (inputs,) in enumerate(a_loader(40), start=1):
            with torch.no_grad():
                net(inputs)
            if number % 2:
                continue
            net(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    log = steps_of(tmp_path, train)
    assert len(log.steps) == 20
    assert {row.samples for row in log.steps} == {_SAMPLES}
    assert not {step for step in log.unexplained_gaps_ns() if step > 3}


def test_batches_that_are_looked_at_now_and_then_belong_to_no_step(tmp_path: Path) -> None:
    def train() -> None:
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for number, (inputs,) in enumerate(a_loader(40), start=1):
            if number % 5 == 0:
                with torch.no_grad():
                    net(inputs)
                continue
            net(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    log = steps_of(tmp_path, train)
    assert len(log.steps) == 32
    assert {row.samples for row in log.steps} == {_SAMPLES}
    assert len(log.evaluations_ns) == 8
