"""How often a script's objects are searched for the models of its optimizers."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from harness.attach import discovery, search_budget, session
from harness.attach.search_budget import SearchBudget
from tests.attach_factories import attached

SECOND_NS = 1_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def search(budget: SearchBudget, clock: Clock, duration_ns: int) -> None:
    with budget.spending():
        clock.now_ns += duration_ns


def test_first_searches_are_free_and_further_ones_take_a_small_share_of_the_time() -> None:
    clock = Clock()
    budget = SearchBudget(clock)
    searches = 0
    while budget.permits():
        search(budget, clock, SECOND_NS // 10)
        searches += 1
    assert searches == search_budget._FREE
    clock.now_ns = 20 * SECOND_NS
    assert not budget.permits()
    clock.now_ns = 26 * SECOND_NS
    assert budget.permits()
    search(budget, clock, SECOND_NS // 10)
    assert not budget.permits()


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of parameters that were searched for."""
    found: list[int] = []

    def find(parameters: set[int], *others: object) -> list[nn.Module]:
        found.append(len(parameters))
        return discovery.find_models(parameters, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(session, "find_models", find)
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
    with attached(tmp_path) as (own, _, guard):
        for _ in range(4):
            train(model, torch.optim.SGD(model.parameters(), lr=0.1), 3)
        own.end(None)
    assert guard.message is None
    assert len(searches) == 1  # At the beginning.


def test_an_optimizer_for_each_of_many_copies_of_a_model_searches_for_few(
    tmp_path: Path, searches: list[int]
) -> None:
    model = nn.Linear(4, 2)
    with attached(tmp_path) as (own, _, guard):
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 3)
        for _ in range(3 * search_budget._FREE):
            own_copy = copy.deepcopy(model)
            train(own_copy, torch.optim.SGD(own_copy.parameters(), lr=0.1), 2)
        own.end(None)
    assert guard.message is None
    assert 0 < len(searches) <= 2 * search_budget._FREE
