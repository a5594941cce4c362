"""Loaders before the first step, and those that a script makes anew after one before had other settings."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler

from tests.loader_factories import Numbers, SmallTraining, a_loader, watched


def test_a_change_before_the_first_step_says_that_its_batch_was_loaded_before(tmp_path: Path) -> None:
    with watched(tmp_path) as run:
        run.request(batch_size=8)
        small = SmallTraining()
        for batch in a_loader(count=20, batch_size=4):
            small.step(batch)
    assert run.samples_per_step() == [4, 8, 8]
    ((state, message),) = run.answers()
    assert state == "applied"
    assert message.startswith(
        "Batch size 4 → 8 (loader rebuilt). The batch of this step was loaded before the change. "
    )


def test_a_loader_that_the_script_opens_anew_each_epoch_takes_the_change_over(tmp_path: Path) -> None:
    with watched(tmp_path) as run:
        small = SmallTraining()
        samples: list[int] = []
        for epoch in range(2):
            loader = a_loader(count=20, batch_size=4)
            for batch in loader:
                if epoch == 0 and len(samples) == 1:
                    run.request(batch_size=8)
                samples.append(len(batch))
                small.step(batch)
            del loader
    assert samples == [4, 4, 8, 4, 4, 8, 8]
    assert run.settings()[-1][1]["batch_size"] == 8


def test_a_loader_opened_anew_over_the_same_data_begins_with_the_change(tmp_path: Path) -> None:
    data = Numbers(20)
    with watched(tmp_path) as run:
        small = SmallTraining()
        samples: list[list[int]] = []
        lengths: list[int] = []
        for _ in range(3):
            loader = DataLoader(data, batch_size=4, shuffle=True)
            lengths.append(len(loader))
            samples.append([])
            for batch in loader:
                if len(lengths) == 1 and len(samples[0]) == 1:
                    run.request(batch_size=8)
                samples[-1].append(len(batch))
                small.step(batch)
            del loader
    assert samples == [[4, 4, 8, 4], [8, 8, 4], [8, 8, 4]]
    assert lengths == [5, 3, 3]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": True, "drop_last": True},
        {"shuffle": True, "collate_fn": list},
        {"sampler": RandomSampler(range(20), replacement=True), "batch_size": 5},
    ],
    ids=["in order", "drops", "collates", "size"],
)
@pytest.mark.parametrize("is_evaluation", [False, True])
def test_a_loader_over_the_same_data_that_differs_has_its_own_values(
    tmp_path: Path, options: dict[str, Any], *, is_evaluation: bool
) -> None:
    data = Numbers(20)
    with watched(tmp_path) as run:
        small = SmallTraining()
        loader = DataLoader(data, batch_size=4, shuffle=True)
        for step, batch in enumerate(loader, start=1):
            if step == 2:
                run.request(batch_size=8)
            small.step(batch)
        del loader
        options = {"shuffle": True} if is_evaluation else {"batch_size": 4, **options}
        with torch.set_grad_enabled(not is_evaluation):
            other: DataLoader[int] = DataLoader(data, **{"batch_size": 4, **options})
            evaluated = [len(batch) for batch in other]
    size: int = options.get("batch_size", 4)
    assert evaluated == [size] * (20 // size)


def test_another_loader_of_the_script_with_another_batch_size_is_in_the_log(tmp_path: Path) -> None:
    with watched(tmp_path) as run:
        small = SmallTraining()
        for size in (4, 5):
            for batch in a_loader(count=20, batch_size=size):
                small.step(batch)
        del batch
    assert [(step, changed) for step, _, changed in run.settings()] == [(1, {}), (7, {"batch_size": 5})]
    with run.log() as log:
        (event,) = [row for _, row in log.events() if row.kind == "setting"]
    assert event.message == "The script opened another loader. Batch size 4 → 5."
