"""Samples that a script draws from its network between two steps, whatever module it calls for that."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from harness.attach.discovery import wrapped_by
from tests.attach_factories import Recorded, attached, record_each_evaluation, recorded

_EVERY, _STEPS, _CALLS = 10, 40, 3


class Network(nn.Module):
    """A network that has all of its parameters in a module of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, noisy: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.layers(noisy))


class Diffusion(nn.Module):
    """Returns the loss of the network that it wraps, which it conditions on itself."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Network()

    def forward(self, clean: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            guess = self.network(clean)
        return nn.functional.mse_loss(self.network(clean + guess), clean)

    @torch.no_grad()
    def sample(self) -> None:
        noisy = torch.randn(2, 4)
        for _ in range(_CALLS):
            noisy = self.network(noisy)


@pytest.fixture(autouse=True)
def every_evaluation_has_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    record_each_evaluation(monkeypatch)


def trained(home: Path, draw: Callable[[Diffusion, Diffusion], object], *, every: int = _EVERY) -> Recorded:
    """Train a diffusion with the batches of a loader; `draw` is called after every so many steps with it and
    an average of its weights."""
    diffusion = Diffusion()
    average = copy.deepcopy(diffusion)
    optimizer = torch.optim.SGD(diffusion.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(2 * _STEPS, 4)), batch_size=2)
    with attached(home) as (session, folder, guard):
        for step, (clean,) in enumerate(loader, start=1):
            loss = diffusion(clean)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if not step % every:
                draw(diffusion, average)
        session.end(None)
        assert guard.message is None
    return recorded(folder)


def from_average(_: Diffusion, average: Diffusion) -> None:
    with torch.no_grad():
        average(torch.randn(2, 4))


@pytest.mark.parametrize(
    "draw",
    [from_average, lambda diffusion, _: diffusion.sample(), lambda _, average: average.sample()],
    ids=["the average", "the network within", "the network within the average"],
)
def test_samples_drawn_between_steps_belong_to_no_step(
    tmp_path: Path, draw: Callable[[Diffusion, Diffusion], object]
) -> None:
    log = trained(tmp_path, draw)
    assert len(log.steps) == _STEPS
    assert list(log.evaluations_ns) == [11, 21, 31, 41]
    assert log.unexplained_gaps_ns() == {}


def test_calls_of_a_copy_after_every_step_are_a_part_of_the_next_one(tmp_path: Path) -> None:
    log = trained(tmp_path, from_average, every=1)
    assert (len(log.steps), log.unexplained_gaps_ns()) == (_STEPS, {})
    assert not set(log.evaluations_ns) & set(range(1, _STEPS + 1))


def test_calls_within_the_model_are_no_evaluation(tmp_path: Path) -> None:
    log = trained(tmp_path, lambda _diffusion, _average: None)
    assert (len(log.steps), log.evaluations_ns, log.unexplained_gaps_ns()) == (_STEPS, {}, {})


def test_a_module_is_wrapped_where_it_has_all_parameters_and_is_not_of_torch() -> None:
    diffusion = Diffusion()
    assert wrapped_by([nn.Sequential(diffusion)]) == [diffusion, diffusion.network]
    assert wrapped_by([nn.Sequential(diffusion, Network())]) == []
    assert wrapped_by([nn.ReLU()]) == []


def test_a_script_that_draws_samples_is_not_quiet(tmp_path: Path) -> None:
    diffusion = Diffusion()
    optimizer = torch.optim.SGD(diffusion.parameters(), lr=0.01)
    with attached(tmp_path) as (session, _, guard):
        for _ in range(_EVERY):
            diffusion(torch.randn(2, 4)).backward()
            optimizer.step()
        observation = session.remarks.observation
        assert observation is not None
        diffusion.sample()
        began_ns = observation.training.last_event_ns
        diffusion.sample()
        assert observation.training.last_event_ns > began_ns
        assert guard.message is None
