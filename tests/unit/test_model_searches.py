"""The number of searches of a script's objects for the models of its optimizers."""

import copy
import gc
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from harness.attach import discovery, followed_models, session
from harness.attach.discovery import find_new_models, owned_parameters
from harness.store.reader import LogReader
from tests.attach_factories import attached, steps_of

# Every search takes that long at least.
_SEARCH_S = 0.01


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of parameters that were searched for."""
    found: list[int] = []

    def find(parameters: set[int], *others: object) -> list[nn.Module]:
        found.append(len(parameters))
        return discovery.find_models(parameters, *others)  # type: ignore[arg-type]

    for module in (session, followed_models):
        monkeypatch.setattr(module, "find_models", find)
    return found


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        model(torch.ones(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_further_optimizer_of_a_model_that_is_called_needs_none(
    tmp_path: Path, searches: list[int]
) -> None:
    model = nn.Linear(4, 2)
    with attached(tmp_path) as (own, folder, guard):
        for _ in range(4):
            train(model, torch.optim.SGD(model.parameters(), lr=0.1), 3)
        own.end(None)
    assert guard.message is None
    assert len(searches) == 1  # At the beginning.
    with LogReader(folder.log) as log:
        rows = log.last_steps(100)
    assert [row.samples for row in rows] == [8] * 12
    assert all(row.forward_ns for row in rows)


def test_a_copy_of_the_model_with_an_optimizer_of_its_own_needs_none(
    tmp_path: Path, searches: list[int]
) -> None:
    model = nn.Linear(4, 2)
    with attached(tmp_path) as (own, folder, guard):
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 3)
        for _ in range(3):
            task = copy.deepcopy(model)
            train(task, torch.optim.SGD(task.parameters(), lr=0.1), 3)
        own.end(None)
    assert guard.message is None
    assert len(searches) == 1
    with LogReader(folder.log) as log:
        rows = log.last_steps(100)
    # The first step of a copy is over when its model is found, unless it has the address of one before.
    for name in ("samples", "forward_ns"):
        readings = [bool(getattr(row, name)) for row in rows]
        assert readings[:3] == [True] * 3
        assert all(readings[at + 1 : at + 3] == [True] * 2 for at in (3, 6, 9))


def test_a_new_last_layer_of_an_older_model_is_no_model_of_its_own(tmp_path: Path) -> None:
    def script() -> None:
        first = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        train(first, torch.optim.SGD(first.parameters(), lr=0.1), 2)
        pretrained = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).requires_grad_(False)
        gc.collect()
        pretrained[1] = nn.Linear(4, 2)
        pretrained[0].register_forward_hook(lambda *_: sleep(_SEARCH_S))
        train(pretrained, torch.optim.SGD(pretrained[1].parameters(), lr=0.1), 4)

    log = steps_of(tmp_path, script)
    assert len(log.steps) == 6
    assert all(row.forward_ns >= _SEARCH_S * 1e9 for row in log.steps[3:])


def test_models_that_are_older_than_their_optimizer_are_left_to_the_search() -> None:
    old, new = nn.Linear(4, 2), nn.Linear(4, 2)
    gc.collect()
    wrapper = nn.Sequential(nn.Linear(4, 2))
    optimizers = [torch.optim.SGD([*wrapper.parameters(), *new.parameters()], lr=0.1)]
    owned = owned_parameters(optimizers)
    assert find_new_models(owned, [old], {nn.Sequential}) == []
    assert find_new_models(owned, [new], {nn.Sequential}) == [wrapper]
    assert find_new_models(owned, [new], {nn.Linear}) == []


def test_tensors_of_no_module_are_searched_for_at_the_beginning_alone(
    tmp_path: Path, searches: list[int]
) -> None:
    weights = torch.ones(4, 3, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=1e-3)
    with attached(tmp_path) as (own, _, guard):
        for _ in range(8):
            weights.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        own.end(None)
    assert guard.message is None
    assert len(searches) == 2  # As the training begins, and after the first step that was seen.


def test_tensors_that_neither_a_module_nor_an_optimizer_has_are_searched_for_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizers: list[list[torch.optim.Optimizer]] = []

    def find() -> list[torch.optim.Optimizer]:
        optimizers.append(discovery.live_optimizers())
        return optimizers[-1]

    monkeypatch.setattr(session, "live_optimizers", find)
    weights = torch.ones(4, requires_grad=True)

    def script() -> None:
        for _ in range(30):
            weights.square().mean().backward()
            with torch.no_grad():
                weights.sub_(weights)

    with attached(tmp_path) as (own, folder, guard):
        script()
        own.end(None)
    assert guard.message is None
    assert len(optimizers) == 10
    with LogReader(folder.log) as log:
        assert log.run().state_message == (
            "The script ended before its first step: backward() was called, but no optimizer stepped."
        )


def test_a_module_without_an_optimizer_is_found_after_many_backward_passes_of_tensors(tmp_path: Path) -> None:
    def script() -> None:
        weights = torch.ones(4, requires_grad=True)
        for _ in range(30):
            weights.square().mean().backward()
        model = nn.Linear(4, 2)
        for _ in range(3):
            model(torch.ones(8, 4)).square().mean().backward()
            with torch.no_grad():
                for weight in model.parameters():
                    weight.sub_(weight)
            model.zero_grad()

    assert [row.samples for row in steps_of(tmp_path, script).steps] == [8] * 3


def test_an_optimizer_is_found_after_many_backward_passes_without_one(tmp_path: Path) -> None:
    def script() -> None:
        image = torch.ones(4, requires_grad=True)
        for _ in range(30):
            image.square().mean().backward()
        optimizer = torch.optim.SGD([image], lr=0.1)
        for _ in range(3):
            image.square().mean().backward()
            optimizer.step()

    log = steps_of(tmp_path, script)
    assert len(log.steps) == 3
    assert all(row.backward_ns for row in log.steps)


def test_a_search_between_two_steps_is_no_wait_for_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each model of a cross-validation is older than its optimizer, and is searched for."""

    def find(parameters: set[int], *others: object) -> list[nn.Module]:
        models = discovery.find_models(parameters, *others)  # type: ignore[arg-type]
        sleep(_SEARCH_S)
        return models

    for module in (session, followed_models):
        monkeypatch.setattr(module, "find_models", find)
    data: Any = torch.ones(12, 4)

    def script() -> None:
        models = [nn.Linear(4, 2) for _ in range(3)]
        gc.collect()
        for model in models:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for batch in DataLoader(data, batch_size=4):
                model(batch).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()

    log = steps_of(tmp_path, script)
    assert [row.samples for row in log.steps] == [4] * 9
    assert list(log.unexplained_gaps_ns()) == [4, 7]
    assert all(gap_ns >= _SEARCH_S * 1e9 for gap_ns in log.unexplained_gaps_ns().values())


def test_the_first_step_of_a_further_model_has_its_samples_without_a_loader_too(
    tmp_path: Path, searches: list[int]
) -> None:
    """As in a search of hyperparameters."""

    def script() -> None:
        for width in (4, 8, 16):
            model = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 1))
            train(model, torch.optim.SGD(model.parameters(), lr=0.1), 20)
            gc.collect()

    log = steps_of(tmp_path, script)
    assert len(searches) <= 3
    assert [row.samples for row in log.steps] == [8] * 60
    assert all(row.forward_ns for row in log.steps)


def test_calls_before_an_optimizer_is_created_do_not_hide_the_first_forward_pass(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)

    def script() -> None:
        for _ in range(20):  # As of the layers of a model that computes its stride in its constructor.
            model(torch.ones(8, 4))
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)

    assert all(step.forward_ns for step in steps_of(tmp_path, script).steps)
