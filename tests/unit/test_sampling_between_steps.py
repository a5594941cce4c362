"""Models that are called with gradients between two steps, as scripts do that draw samples from them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.attach_factories import Recorded, record_each_evaluation, steps_of

_STEPS, _EVERY = 60, 20


@pytest.fixture(autouse=True)
def every_evaluation_has_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    record_each_evaluation(monkeypatch)


def a_loader(batch_size: int, count: int = _STEPS) -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(TensorDataset(torch.randn(count * batch_size, 4)), batch_size=batch_size)


def trained(home: Path, every: int, sample: Callable[[nn.Module], object], epochs: int = 1) -> Recorded:
    """Train with a loader, and call `sample` after every so many steps."""

    def train() -> None:
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        loader, step = a_loader(2, _STEPS // epochs), 0
        for _ in range(epochs):
            for (inputs,) in loader:
                optimizer.zero_grad()
                net(inputs).square().mean().backward()
                optimizer.step()
                step += 1
                if step % every == 0:
                    sample(net)

    return steps_of(home, train)


def from_another_loader(net: nn.Module) -> object:
    (inputs,) = next(iter(a_loader(5)))
    return [net(inputs) for _ in range(3)]


def from_noise(net: nn.Module) -> object:
    return net(torch.randn(5, 4))


@pytest.mark.slow
@pytest.mark.parametrize("sample", [from_another_loader, from_noise])
@pytest.mark.parametrize("epochs", [1, 3])
def test_samples_that_are_drawn_now_and_then_belong_to_no_step(
    tmp_path: Path, sample: Callable[[nn.Module], object], epochs: int
) -> None:
    log = trained(tmp_path, _EVERY, sample, epochs)
    assert len(log.steps) == _STEPS
    assert {row.samples for row in log.steps} == {2}
    assert set(log.evaluations_ns) == {_EVERY + 1, 2 * _EVERY + 1, _STEPS + 1}


@pytest.mark.parametrize("sample", [from_another_loader, from_noise])
def test_calls_in_every_step_are_a_part_of_it(tmp_path: Path, sample: Callable[[nn.Module], object]) -> None:
    log = trained(tmp_path, 1, sample)
    assert len(log.steps) == _STEPS
    assert len(log.evaluations_ns) <= 1
    assert {row.samples for row in log.steps[5:]} == {7 if sample is from_another_loader else 2}


def test_an_evaluation_between_a_batch_and_the_training_on_it_belongs_to_no_step(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 2))
    held_out = torch.randn(9, 4)

    def train() -> None:
        optimizer = torch.optim.Adam(net.parameters())
        for step, (inputs,) in enumerate(a_loader(2)):
            if step and step % _EVERY == 0:
                net.eval()
                with torch.no_grad():
                    [net(part) for part in held_out.split(3)]
                net.train()
            optimizer.zero_grad()
            net(inputs).square().mean().backward()
            optimizer.step()

    log = steps_of(tmp_path, train)
    assert [row.samples for row in log.steps] == [2] * _STEPS
    assert set(log.evaluations_ns) == {_EVERY + 1, 2 * _EVERY + 1}


def test_labels_that_the_model_gives_each_batch_in_evaluation_mode_are_a_part_of_the_step(
    tmp_path: Path,
) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 2))

    def train() -> None:
        optimizer = torch.optim.Adam(net.parameters())
        for (inputs,) in a_loader(2):
            net.eval()
            with torch.no_grad():
                labels = net(inputs).argmax(1)
            net.train()
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(inputs), labels).backward()
            optimizer.step()

    log = steps_of(tmp_path, train)
    assert [row.samples for row in log.steps] == [2] * _STEPS
    assert not log.evaluations_ns
