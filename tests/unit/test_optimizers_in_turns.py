"""The steps of scripts with optimizers that take turns, or follow each other."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.attach_factories import record_each_evaluation, steps_of

BATCH, STEPS = 4, 10


@pytest.fixture(autouse=True)
def every_evaluation_has_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    record_each_evaluation(monkeypatch)


def _in_turns(after: Callable[[int, nn.Module], None], steps: int = STEPS) -> None:
    """Train the two heads of a model in turns; `after` is called after each update."""
    torch.manual_seed(1)
    encoder, heads = nn.Linear(2, 3), [nn.Linear(3, 1), nn.Linear(3, 2)]
    optimizers = [
        torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=1e-3, momentum=0.9) for head in heads
    ]
    loader = DataLoader(TensorDataset(torch.randn(BATCH * 2 * steps, 2)), batch_size=BATCH)
    for number, (inputs,) in enumerate(islice(loader, steps)):
        optimizer = optimizers[number % 2]
        optimizer.zero_grad()
        heads[number % 2](encoder(inputs)).square().mean().backward()
        optimizer.step()
        after(number + 1, encoder)


@pytest.mark.parametrize("steps", [STEPS, STEPS + 1])
def test_the_last_update_of_two_optimizers_that_take_turns_is_a_step(tmp_path: Path, steps: int) -> None:
    log = steps_of(tmp_path, lambda: _in_turns(lambda _step, _model: None, steps))
    assert log.samples == [BATCH] * steps


@pytest.mark.parametrize("evaluated", [5, 6])
def test_samples_after_a_step_of_either_optimizer_belong_to_no_step(tmp_path: Path, evaluated: int) -> None:
    def evaluate(step: int, model: nn.Module) -> None:
        if step == evaluated:
            with torch.no_grad():
                model(torch.ones(1, 2))

    log = steps_of(tmp_path, lambda: _in_turns(evaluate))
    assert log.samples == [BATCH] * STEPS
    assert list(log.evaluations_ns) == [evaluated + 1]
    assert log.unexplained_gaps_ns() == {}


@pytest.mark.parametrize(("other", "missing"), [(None, 0), (nn.Linear(2, 1), 0), (nn.Linear(2, 2), 1)])
def test_the_first_update_of_an_optimizer_that_trains_a_model_further_or_one_like_it_is_a_step(
    tmp_path: Path, other: nn.Module | None, missing: int
) -> None:
    """Without a loader, while the earlier one exists. That of a model with parameters of other shapes may be
    one more of an iteration: its first update counts with the second."""

    def script() -> None:
        model: nn.Module = nn.Linear(2, 1)
        before: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        trainings = [(before, model)] * STEPS
        for number in range(2 * STEPS):
            if number == STEPS:
                further = other or model
                trainings += [(torch.optim.Adam(further.parameters(), lr=1e-3), further)] * STEPS
            optimizer, trained = trainings[number]
            optimizer.zero_grad()
            trained(torch.ones(BATCH, 2)).square().mean().backward()
            optimizer.step()

    assert len(steps_of(tmp_path, script).steps) == 2 * STEPS - missing


@pytest.mark.parametrize("are_kept", [False, True])
def test_a_new_pair_of_optimizers_makes_steps_from_its_first_updates_on(
    tmp_path: Path, are_kept: bool
) -> None:
    """As a text VAE, which creates both optimizers again for a lower learning rate."""

    def script() -> None:
        models, kept = [nn.Linear(2, 2), nn.Linear(2, 1)], []
        for _ in range(2):
            optimizers = [torch.optim.SGD(model.parameters(), lr=1e-6) for model in models]
            kept += optimizers if are_kept else []
            for number in range(STEPS):
                (models[1](models[0](torch.ones(BATCH, 2))).mean() + 100 * number).backward()
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()

    rows = steps_of(tmp_path, script).steps
    assert [round((row.loss or 0) / 100) for row in rows] == [*range(STEPS)] * 2
    assert [row.samples for row in rows] == [BATCH] * 2 * STEPS


def test_an_optimizer_created_for_an_iteration_with_the_one_before_makes_no_step_of_its_own(
    tmp_path: Path,
) -> None:
    def script() -> None:
        model = nn.Linear(2, 1)
        optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3)]
        for number in range(2 * STEPS):
            if number == STEPS:
                optimizers.append(torch.optim.SGD([model.bias], lr=1e-3))
            model.zero_grad()
            model(torch.ones(BATCH, 2)).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()

    assert len(steps_of(tmp_path, script).steps) == 2 * STEPS


@pytest.mark.parametrize("context", [nullcontext, torch.no_grad])
@pytest.mark.parametrize("critic_updates", [2, 5])
def test_several_updates_of_a_critic_with_each_batch_are_one_step_with_that_of_the_generator(
    tmp_path: Path, critic_updates: int, context: Callable[[], AbstractContextManager[None]]
) -> None:
    generator, critic = nn.Linear(2, 3), nn.Linear(3, 1)
    of_generator = torch.optim.SGD(generator.parameters(), lr=1e-3)
    of_critic = torch.optim.SGD(critic.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(torch.randn(BATCH * STEPS, 3)), batch_size=BATCH)
    losses: list[float] = []

    def train() -> None:
        for (inputs,) in loader:
            for _ in range(critic_updates):
                of_critic.zero_grad()
                with context():
                    fake = generator(torch.randn(BATCH, 2)).detach()
                (critic(fake).mean() - critic(inputs).mean()).backward()
                of_critic.step()
            of_generator.zero_grad()
            loss = critic(generator(torch.randn(BATCH, 2))).mean().neg()
            loss.backward()
            of_generator.step()
            losses.append(loss.item())

    log = steps_of(tmp_path, train)
    assert log.samples == [BATCH] * STEPS
    assert [row.loss for row in log.steps] == pytest.approx(losses)


def test_an_optimizer_that_steps_no_more_delays_its_partner_up_to_the_next_batch(tmp_path: Path) -> None:
    encoder, head = nn.Linear(3, 3), nn.Linear(3, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3) for model in (encoder, head)]
    loader = DataLoader(TensorDataset(torch.randn(BATCH * STEPS, 3)), batch_size=BATCH)

    def train() -> None:
        for number, (inputs,) in enumerate(loader):
            for _ in range(1 if number < STEPS // 2 else 3):
                head(encoder(inputs)).mean().backward()
                for optimizer in optimizers[: 2 if number < STEPS // 2 else 1]:
                    optimizer.step()
                    optimizer.zero_grad()

    assert len(steps_of(tmp_path, train).samples) == STEPS // 2 + 1 + 3 * (STEPS - STEPS // 2 - 1)
