"""Test the first steps of scripts with several optimizers: the first iteration waits for those in it."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from harness.records.run import EventKind
from tests.attach_factories import steps_of

_BATCH, _STEPS = 4, 4


def _loader(batches: int = _STEPS) -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(TensorDataset(torch.ones(batches * _BATCH, 2)), batch_size=_BATCH)


def _optimizer(*models: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([weight for model in models for weight in model.parameters()], lr=1e-6)


def _train(loss: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def test_each_step_of_a_gan_has_both_updates_and_the_loss_of_the_second(tmp_path: Path) -> None:
    def script() -> None:
        generator, discriminator = nn.Linear(2, 2), nn.Linear(2, 1)
        of_generator, of_discriminator = _optimizer(generator), _optimizer(discriminator)
        for (real,) in _loader():
            fake = generator(torch.randn(_BATCH, 2))
            loss = discriminator(real).mean() - discriminator(fake.detach()).mean()
            _train(loss + 100, of_discriminator)
            _train(discriminator(fake).mean() + 200, of_generator)

    rows = steps_of(tmp_path, script).steps
    assert [round((row.loss or 0) / 100) for row in rows] == [2] * _STEPS
    assert [row.samples for row in rows] == [_BATCH] * _STEPS
    assert all(row.forward_ns and row.backward_ns and row.optimizer_ns for row in rows)


def test_two_optimizers_of_one_model_make_each_step_together_without_a_loader(tmp_path: Path) -> None:
    def script() -> None:
        model = nn.Linear(2, 1)
        optimizers = [torch.optim.SGD([model.weight], lr=1e-6), torch.optim.Adam([model.bias], lr=1e-6)]
        for number in range(_STEPS):
            (model(torch.ones(_BATCH + number, 2)).mean() + 100 * number).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

    rows = steps_of(tmp_path, script).steps
    assert [row.samples for row in rows] == [_BATCH + number for number in range(_STEPS)]
    assert [round((row.loss or 0) / 100) for row in rows] == list(range(_STEPS))
    assert all(row.forward_ns and row.backward_ns for row in rows)


def test_an_optimizer_that_does_not_step_ends_no_step_later_than_the_next_batch(tmp_path: Path) -> None:
    def script() -> None:
        first, second = nn.Linear(2, 1), nn.Linear(2, 1)
        optimizers = [_optimizer(first), _optimizer(second)]
        for model, optimizer in zip((first, second), optimizers, strict=True):
            for (inputs,) in _loader():
                _train(model(inputs).mean(), optimizer)

    assert [row.samples for row in steps_of(tmp_path, script).steps] == [_BATCH] * 2 * _STEPS


def test_the_only_step_is_recorded_although_another_optimizer_was_expected_in_it(tmp_path: Path) -> None:
    def script() -> None:
        first, second = nn.Linear(2, 1), nn.Linear(2, 1)
        optimizer, _other = _optimizer(first), _optimizer(second)
        for (inputs,) in _loader(1):
            _train(first(inputs).mean(), optimizer)

    assert [row.samples for row in steps_of(tmp_path, script).steps] == [_BATCH]


def test_without_a_loader_no_step_waits_for_an_optimizer_of_another_model(tmp_path: Path) -> None:
    def script() -> None:
        first, earlier = nn.Linear(2, 1), nn.Linear(2, 1)
        optimizer, _other = _optimizer(first), _optimizer(earlier)
        earlier(torch.ones(_BATCH, 2)).mean().backward()
        for _ in range(_STEPS):
            _train(first(torch.ones(_BATCH, 2)).mean(), optimizer)

    rows = steps_of(tmp_path, script).steps
    assert [row.samples for row in rows] == [_BATCH] * _STEPS


def test_the_first_iteration_waits_for_an_optimizer_that_shares_weights_with_the_others(
    tmp_path: Path,
) -> None:
    """As in InfoGAN: the third one trains both models once more."""

    def script() -> None:
        generator, discriminator = nn.Linear(2, 2), nn.Linear(2, 1)
        of_generator, of_discriminator = _optimizer(generator), _optimizer(discriminator)
        of_both = _optimizer(generator, discriminator)
        for (real,) in _loader():
            _train(discriminator(generator(real)).mean(), of_generator)
            _train(discriminator(real).mean(), of_discriminator)
            _train(discriminator(generator(real)).mean() + 300, of_both)

    rows = steps_of(tmp_path, script).steps
    assert [round((row.loss or 0) / 100) for row in rows] == [3] * _STEPS
    assert [row.samples for row in rows] == [_BATCH] * _STEPS


def test_an_optimizer_of_a_later_stage_with_more_weights_leaves_the_steps_of_the_first_alone(
    tmp_path: Path,
) -> None:
    def script() -> None:
        body, head = nn.Linear(2, 2), nn.Linear(2, 1)
        of_head, of_both = _optimizer(head), _optimizer(body, head)
        for optimizer in (of_head, of_both):
            for (real,) in _loader():
                _train(head(body(real)).mean(), optimizer)

    rows = steps_of(tmp_path, script).steps
    assert [row.samples for row in rows] == [_BATCH] * (2 * _STEPS)
    assert all(row.forward_ns and row.backward_ns and row.optimizer_ns for row in rows)


def test_micro_batches_after_the_last_update_of_an_iteration_count_together(tmp_path: Path) -> None:
    """Without a loader, the second optimizer's first update comes after the end of the first step."""

    def script() -> None:
        body, head = nn.Linear(2, 2), nn.Linear(2, 1)
        optimizers = [_optimizer(body), torch.optim.Adam(head.parameters(), lr=1e-6)]
        for _ in range(_STEPS):
            for _ in range(3):
                head(body(torch.ones(_BATCH, 2))).mean().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

    assert [row.samples for row in steps_of(tmp_path, script).steps] == [3 * _BATCH] * _STEPS


@pytest.mark.parametrize("is_alive", [False, True])
@pytest.mark.parametrize("is_of_another", [False, True])
def test_the_only_update_of_a_second_optimizer_is_the_last_step(
    tmp_path: Path, is_alive: bool, is_of_another: bool
) -> None:
    """As where a network learns with Adam and then it, or another one, in one step of LBFGS."""
    alive: list[torch.optim.Optimizer] = []

    def script() -> None:
        model, inputs = nn.Linear(2, 1), torch.ones(_BATCH, 2)
        optimizer = _optimizer(model)
        for _ in range(_STEPS):
            _train(model(inputs).mean(), optimizer)
        if is_of_another:
            model = nn.Linear(2, 2)
        second = torch.optim.LBFGS(model.parameters(), lr=1e-6, max_iter=3)
        if is_alive:
            alive.append(second)

        def closure() -> torch.Tensor:
            second.zero_grad()
            loss: torch.Tensor = model(inputs).square().mean()
            loss.backward()
            return loss

        second.step(closure)
        model.eval()
        with torch.no_grad():
            model(torch.ones(_BATCH + 1, 2))

    log = steps_of(tmp_path, script)
    assert [row.samples for row in log.steps] == [_BATCH] * (_STEPS + 1)
    following = _STEPS + 1 if is_of_another else _STEPS + 2  # Known at the end, and at the update.
    assert [event.step for event in log.events if event.kind == EventKind.EVALUATION] == [following]
