"""Test the loaders of a script that trains in stages, and keeps those of the earlier ones."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from tests.loader_factories import SmallTraining, Watched, a_loader, watched


def _train(run: Watched, small: SmallTraining, batches: Iterable[Any], request: int | None = None) -> None:
    for batch in batches:
        small.step(batch)
    if request is not None:
        run.request(batch_size=request)


def _states(run: Watched) -> list[str]:
    return [state for state, _ in run.answers()]


def test_a_loader_of_an_earlier_stage_counts_up_to_the_second_pass_over_another_one(tmp_path: Path) -> None:
    first, second = a_loader(count=12, batch_size=4), a_loader(count=12, batch_size=4)
    with watched(tmp_path) as run:
        small = SmallTraining()
        for loader in (first, first, second):
            _train(run, small, loader)
        for number, batch in enumerate(second):
            small.step(batch)
            if number == 0:
                run.request(batch_size=2)
        _train(run, small, second)
    assert _states(run) == ["applied"]
    assert run.samples_per_step()[-6:] == [2] * 6
    with run.log() as log:
        assert log.script.unavailable_settings().get("batch_size") is None


def test_loaders_that_take_turns_both_feed_the_training(tmp_path: Path) -> None:
    first, second = a_loader(count=12, batch_size=4), a_loader(count=12, batch_size=4)
    with watched(tmp_path) as run:
        small = SmallTraining()
        for _ in range(3):
            _train(run, small, first)
            with torch.no_grad():
                list(first)
            _train(run, small, second, request=2)
            with torch.no_grad():
                list(second)
        _train(run, small, first)
    assert _states(run) == ["rejected"] * 3
