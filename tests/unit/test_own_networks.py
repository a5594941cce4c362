"""The random networks on which predictions are measured."""

from pathlib import Path

import pytest
import torch
from torch import nn

from harness.settings.resolve import check_fit, resolve
from tests.bench.own_draws import draw_own
from tests.scripts.own_networks import FAMILIES, plan_of
from tests.scripts.own_networks.plan import RandomSamples


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_trains(family: str) -> None:
    plan = plan_of(family, 1)
    built = plan.make()
    model, loss = built if isinstance(built, tuple) else (built, None)
    inputs, targets = torch.utils.data.default_collate([RandomSamples(plan)[index] for index in (0, 1)])
    value = model(inputs, targets) if loss is None else loss(model(inputs), targets)
    value.backward()
    assert isinstance(model, nn.Module)
    assert any(weight.grad is not None for weight in model.parameters())


def test_a_seed_draws_the_same_files_and_settings_that_fit_together(tmp_path: Path) -> None:
    first, second = (draw_own(len(FAMILIES), 7, tmp_path) for _ in range(2))
    assert [draw.words for draw in first] == [draw.words for draw in second]
    assert {draw.model.rpartition("_")[0] for draw in first} == set(FAMILIES)
    for draw in first:
        check_fit(resolve(draw.values))
