"""Loops over the steps of a run: their batches come as without the run, and phases lie within the steps."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.api_factories import Batch, SmallTraining, log_of, scalar, watch


def _shuffled(samples: int) -> DataLoader[Any]:
    data = TensorDataset(torch.randn(samples, 4), torch.randint(0, 2, (samples,)))
    return DataLoader(data, batch_size=8, shuffle=True)


def test_loaders_that_are_zipped_draw_their_random_numbers_in_the_same_order(tmp_path: Path) -> None:
    def train(training: SmallTraining, first: Iterator[Batch], second: Iterator[Batch]) -> list[float]:
        pairs = zip(first, second, strict=False)
        return [training.step(one).item() + training.step(two).item() for one, two in pairs]

    training = SmallTraining()
    left, right = _shuffled(64), _shuffled(32)
    bare = train(training, iter(left), iter(right))
    training = SmallTraining()
    left, right = _shuffled(64), _shuffled(32)
    with watch(training, tmp_path) as run:
        assert train(training, iter(run.steps(left)), iter(run.steps(right))) == bare
    with log_of(tmp_path) as log:
        assert len(log.last_steps(100)) == 8


def test_what_cannot_be_iterated_over_is_reported_where_the_loop_begins(tmp_path: Path) -> None:
    training = SmallTraining()
    with watch(training, tmp_path) as run, pytest.raises(TypeError, match="'int' object is not iterable"):
        iter(run.steps(5))  # type: ignore[arg-type]


def test_batches_that_fail_leave_no_wait_for_the_next_steps(tmp_path: Path) -> None:
    training = SmallTraining()
    batches = list(training.loader)

    def failing() -> Iterator[Batch]:
        yield batches[0]
        raise ValueError("a broken file")

    with watch(training, tmp_path) as run:
        with pytest.raises(ValueError, match="a broken file"):
            training.train(run.steps(failing()))
        for batch in run.steps(batches):
            time.sleep(0.05)
            training.step(batch)
    with log_of(tmp_path) as log:
        rows = log.last_steps(100)
    assert len(rows) == 9
    assert all(row.data_wait_ns < 50_000_000 for row in rows)


def test_a_phase_within_itself_is_measured_once(tmp_path: Path) -> None:
    training = SmallTraining()
    with watch(training, tmp_path) as run:
        phase = run.phase("search")
        for batch in run.steps(training.loader):
            with ExitStack() as levels:
                for level in range(8):
                    levels.enter_context(phase if level % 2 else run.phase("search"))
                torch.randn(100_000).sort()
            training.step(batch)
    with log_of(tmp_path) as log:
        rows = log.last_steps(100)
    phases = scalar(tmp_path, "phase/search")
    assert all(0 < ms * 1e6 < row.step_ns for (_, ms), row in zip(phases, rows, strict=True) if ms)


def test_a_loop_after_the_end_of_the_run_says_once_that_it_is_not_watched(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    training = SmallTraining()
    with watch(training, tmp_path) as run:
        training.train(run.steps(training.loader))
    capfd.readouterr()
    for _ in range(2):
        assert len(training.train(run.steps(training.loader))) == 8
    assert capfd.readouterr().err == (
        "stepscope: This run has ended: the loop is not watched. Call stepscope.watch.\n"
    )


@pytest.mark.parametrize("is_in_steps", [True, False])
@pytest.mark.parametrize("is_kept", [True, False])
def test_batches_that_are_loaded_before_the_first_loop_belong_to_no_step(
    tmp_path: Path, is_in_steps: bool, is_kept: bool
) -> None:
    training = SmallTraining()
    with watch(training, tmp_path) as run:
        if is_kept:
            batches = list(training.loader)
        else:
            batches = list(DataLoader(training.loader.dataset, batch_size=8))
        training.train(run.steps(batches) if is_in_steps else batches)
    with log_of(tmp_path) as log:
        rows = log.last_steps(100)
    assert [row.samples for row in rows] == [8] * 8
    assert is_in_steps or rows[0].data_wait_ns == 0
