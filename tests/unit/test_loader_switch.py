"""The settings of a script's loader while it trains: requests, answers, batches and the log."""

import sys
from collections.abc import Callable, Iterator
from itertools import cycle, islice, pairwise
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import pytest
import torch
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader, Sampler

from harness.cli.changes import changes_of
from tests.loader_factories import (
    Numbers,
    Pairs,
    SmallTraining,
    Stream,
    Watched,
    a_loader,
    numbers,
    watched,
)


def train(
    run: Watched, loader: DataLoader[int], epochs: int = 1, before: Callable[[int], None] = lambda _step: None
) -> list[list[list[int]]]:
    """Train, and return the batches of every epoch; `before` is called in each step, before its end."""
    small, step, samples = SmallTraining(), 0, []
    for _ in range(epochs):
        batches = []
        for batch in loader:
            step += 1
            before(step)
            batches.append(numbers(batch))
            small.step(batch)
        samples.append(batches)
    return samples


def at_step(step: int, run: Watched, **values: Any) -> Callable[[int], None]:
    """Request values in a step."""

    def before(number: int) -> None:
        if number == step:
            run.request(**values)

    return before


def refusal_of(home: Path, loader: DataLoader[Any], **values: Any) -> str:
    """The reason for the rejection of values requested in the second step."""
    with watched(home) as run:
        train(run, loader, before=at_step(2, run, **values))
    state, message = run.answers()[-1]
    assert state == "rejected"
    return message


def test_the_batch_size_changes_between_two_steps_and_stays_for_the_next_epochs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    loader = a_loader("random", 40, batch_size=4)
    with watched(tmp_path) as run:
        first, second = train(run, loader, 2, at_step(3, run, batch_size=8))
    assert [len(batch) for batch in first] == [4, 4, 4, 8, 8, 8, 4]
    assert [len(batch) for batch in second] == [8] * 5
    for epoch in (first, second):
        assert sorted(number for batch in epoch for number in batch) == list(range(40))
    assert run.samples_per_step() == [4, 4, 4, 8, 8, 8, 4, 8, 8, 8, 8, 8]
    assert run.answers()[-1] == (
        "applied",
        "Batch size 4 → 8 (loader rebuilt). len(loader) follows: a script that has read it before may look "
        "for more batches in this epoch.",
    )
    own = {"batch_size": 4, "pin_memory": False, "num_workers": 0, "prefetch_factor": 2}
    assert run.settings() == [(1, own, {}), (4, own | {"batch_size": 8}, {"batch_size": 8})]
    assert len(loader) == 10


def test_a_smaller_batch_than_the_scripts_comes_with_a_word_about_the_length(tmp_path: Path) -> None:
    with watched(tmp_path) as run:
        train(run, a_loader(count=20, batch_size=4), before=at_step(2, run, batch_size=2))
    assert run.answers()[-1][1] == (
        "Batch size 4 → 2 (loader rebuilt). len(loader) follows: a script that has read it before may end "
        "its epochs, or a schedule, early."
    )


@pytest.mark.slow
class LengthLess(Sampler[int]):
    """A sampler with its length left open, as a base class of a script has it."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(20))

    def __len__(self) -> int:
        raise NotImplementedError


def test_a_sampler_whose_length_is_left_open_goes_on_with_another_size(tmp_path: Path) -> None:
    loader = DataLoader(Numbers(20), batch_size=4, sampler=LengthLess())
    with watched(tmp_path) as run:
        (batches,) = train(run, loader, before=at_step(2, run, batch_size=8))
    assert [len(batch) for batch in batches] == [4, 4, 8, 4]


@pytest.mark.slow
def test_random_numbers_are_the_scripts_own_where_its_workers_are_not_kept(tmp_path: Path) -> None:
    def epochs(run: Watched | None) -> tuple[list[list[int]], float]:
        torch.manual_seed(5)
        small, samples = SmallTraining(), []
        loader = DataLoader(Numbers(12), 4, shuffle=True, num_workers=1, persistent_workers=True)
        for epoch in range(5):
            for batch in loader:
                samples.append(batch.tolist())
                if run is not None and len(samples) in (4, 8):
                    run.request(num_workers=0 if epoch == 1 else 1)
                small.step(batch)
        return samples, float(torch.rand(()))

    bare = epochs(None)
    with watched(tmp_path) as run:
        assert epochs(run) == bare
    assert [state for state, _ in run.answers()] == ["applied", "applied"]


def test_persistent_workers_of_the_next_epoch_have_the_values_of_the_change(tmp_path: Path) -> None:
    loader = a_loader("random", 24, batch_size=4, num_workers=1, persistent_workers=True)
    with watched(tmp_path) as run:
        small, samples = SmallTraining(), []
        for epoch in range(3):
            for number, batch in enumerate(loader):
                if (epoch, number) == (0, 1):
                    run.request(batch_size=8, num_workers=2)
                if (epoch, number) == (1, 1):
                    run.request(num_workers=0)
                samples.append(numbers(batch))
                small.step(batch)
    assert [len(batch) for batch in samples] == [4, 4, 8, 8] + [8] * 3 + [8] * 3
    for batches in (samples[:4], samples[4:7], samples[7:]):
        assert sorted(number for batch in batches for number in batch) == list(range(24))


@pytest.mark.slow
def test_without_the_order_of_its_batches_a_loader_changes_at_the_next_epoch(tmp_path: Path) -> None:
    loader = a_loader(count=24, batch_size=4, num_workers=2, in_order=False)
    with watched(tmp_path) as run:
        first, second = train(run, loader, 2, at_step(2, run, batch_size=8))
    assert "in_order=False" in run.answers()[-1][1]
    assert [len(batch) for batch in first + second] == [4] * 6 + [8] * 3
    for epoch in (first, second):
        assert sorted(number for batch in epoch for number in batch) == list(range(24))


def test_the_samples_of_a_batch_loaded_ahead_by_the_script_are_not_lost(tmp_path: Path) -> None:
    with watched(tmp_path) as run:
        small, samples = SmallTraining(), []
        ahead = iter(a_loader(count=20, batch_size=4))
        batches = [next(ahead)]
        for batch in ahead:
            batches.append(batch)
            if len(batches) == 3:
                run.request(batch_size=2)
            samples += numbers(batches[-2])
            small.step(batches[-2])
        small.step(batches[-1])
        samples += numbers(batches[-1])
    assert samples == list(range(20))
    assert [len(batch) for batch in batches] == [4, 4, 4, 2, 2, 2, 2]
    assert "loads batches ahead" in run.answers()[-1][1]


def test_only_the_loader_of_the_training_steps_changes(tmp_path: Path) -> None:
    held_out, loader = a_loader(count=12, batch_size=6), a_loader(count=12, batch_size=4)
    with watched(tmp_path) as run:
        small = SmallTraining()
        for epoch in range(2):
            sizes = []
            for batch in held_out:
                small.evaluate(batch)
                sizes.append(len(batch))
                if epoch:
                    break
            for batch in loader:
                small.step(batch)
            run.request(batch_size=2)
    assert sizes == [6]
    assert run.settings()[0][1]["batch_size"] == 4
    assert run.samples_per_step() == [4, 4, 4, 4, 2, 2, 2, 2]


def test_an_iterator_for_every_step_has_the_new_size_from_the_next_one_on(tmp_path: Path) -> None:
    loader = a_loader("random", 20, batch_size=4)
    with watched(tmp_path) as run:
        small = SmallTraining()
        for step in range(1, 6):
            small.step(next(iter(loader)))
            if step == 2:
                run.request(batch_size=6)
    assert run.samples_per_step() == [4, 4, 4, 6, 6]


def test_an_evaluation_with_the_loader_of_the_training_leaves_its_epoch_whole(tmp_path: Path) -> None:
    loader = a_loader(count=20, batch_size=4)
    with watched(tmp_path) as run:
        small, samples = SmallTraining(), []
        for number, batch in enumerate(loader):
            if number == 1:
                run.request(batch_size=6)
            small.step(batch)
            samples.append(numbers(batch))
            if number == 2:
                for other in loader:
                    small.evaluate(other)
    assert samples == [list(range(4)), list(range(4, 8)), list(range(8, 14)), list(range(14, 20))]
    assert run.samples_per_step() == [4, 4, 6, 6]


def test_two_loaders_of_the_same_steps_are_left_as_they_are(tmp_path: Path) -> None:
    one, other = a_loader(count=12, batch_size=4), a_loader(count=6, batch_size=2)
    with watched(tmp_path) as run:
        small = SmallTraining()
        for first, second in zip(one, other, strict=True):
            small.step(first, second)
            run.request(batch_size=8)
    rejected = [message for state, message in run.answers() if state == "rejected"]
    assert "2 feed that of this script" in rejected[-1]
    assert "applied" not in [state for state, _ in run.answers()]
    assert [values for _, values, _ in run.settings()] == [{}]
    with run.log() as log:
        assert log.script.unavailable_settings()["batch_size"] == rejected[-1]


def steps_with_another(run: Watched, steps: set[int]) -> None:
    """Train with one loader, before some of the steps with a batch of another one too, and request a batch
    size in step 12."""
    small, batches, other = SmallTraining(), iter(a_loader(count=80, batch_size=4)), a_loader(batch_size=2)
    for step in range(1, 16):
        more = [next(iter(other))] if step in steps else []
        small.step(*more, next(batches))
        if step == 12:
            run.request(batch_size=8)


def test_a_loader_with_batches_in_single_steps_does_not_feed_the_training(tmp_path: Path) -> None:
    with watched(tmp_path) as run:
        steps_with_another(run, {4, 8, 10})
    assert [state for state, _ in run.answers()] == ["applied"]


def test_a_loader_with_batches_in_consecutive_steps_feeds_the_training(tmp_path: Path) -> None:
    with watched(tmp_path) as run:
        steps_with_another(run, {4, 5})
    ((state, message),) = run.answers()
    assert state == "rejected"
    assert "2 feed that of this script" in message


def test_a_script_without_a_loader_has_no_settings_of_one(tmp_path: Path) -> None:
    with watched(tmp_path) as run:
        small = SmallTraining()
        for _ in range(3):
            run.request(num_workers=2)
            small.step(torch.arange(4))
    _, message = run.answers()[-1]
    assert message.startswith("Loader workers can change in a torch.utils.data.DataLoader; none has fed a")
    assert [values for _, values, _ in run.settings()] == [{}]


def test_a_loader_that_becomes_known_late_is_recorded_and_is_no_change(tmp_path: Path) -> None:
    with watched(tmp_path) as run:
        small = SmallTraining()
        small.step(torch.arange(4))
        for batch in a_loader(count=12, batch_size=4):
            small.step(batch)
    assert [(step, values.get("batch_size")) for step, values, _ in run.settings()] == [(1, None), (3, 4)]
    assert changes_of(run.folder, is_over=True) == []


def test_a_change_that_only_the_next_epoch_can_have_says_so_and_takes_effect_there(tmp_path: Path) -> None:
    loader = DataLoader(Stream(12), batch_size=4)
    with watched(tmp_path) as run:
        train(run, loader, 2, at_step(2, run, batch_size=6))
    assert run.samples_per_step() == [4, 4, 4, 6, 6]
    state, message = run.answers()[-1]
    assert state == "applied"
    assert message.endswith(
        " It takes effect at the next epoch, because an IterableDataset cannot be continued by another "
        "iterator."
    )


def test_a_change_after_the_last_pass_says_that_the_script_may_open_no_other(tmp_path: Path) -> None:
    loader = a_loader(count=12, batch_size=4)
    with watched(tmp_path) as run:
        small = SmallTraining()
        for step, batch in enumerate(islice(cycle(loader), 8), start=1):
            at_step(5, run, batch_size=6)(step)
            small.step(batch)
    assert run.samples_per_step() == [4] * 8
    state, message = run.answers()[-1]
    assert state == "applied"
    assert "It takes effect when the script opens the loader again: its last pass has ended." in message


def test_values_that_fail_are_given_back_and_the_script_trains_on(tmp_path: Path) -> None:
    def collate(samples: list[int]) -> torch.Tensor:
        if len(samples) > 5:
            raise ValueError("too many at once")
        return torch.tensor(samples)

    with watched(tmp_path) as run:
        loader = a_loader(count=20, batch_size=4, collate_fn=collate)
        (inputs,) = train(run, loader, 1, at_step(2, run, batch_size=8))
    assert [number for batch in inputs for number in batch] == list(range(20))
    assert run.samples_per_step() == [4] * 5
    assert [(step, changed) for step, _, changed in run.settings()] == [
        (1, {}),
        (3, {"batch_size": 8}),
        (4, {"batch_size": 4}),
    ]
    with run.log() as log:
        event = [row for _, row in log.events() if row.kind == "setting"][-1]
    assert (event.severity, event.message) == (
        "warning",
        "The loader failed with new values, and has its earlier ones: too many at once",
    )


def test_loaders_that_cannot_change_say_why(tmp_path: Path) -> None:
    pairs: DataLoader[int] = DataLoader(Numbers(12), batch_sampler=Pairs(12))
    single: DataLoader[int] = DataLoader(Numbers(12), batch_size=None, collate_fn=lambda n: torch.tensor([n]))
    stream: DataLoader[int] = DataLoader(Stream(12), batch_size=4)
    assert "a sampler of the script's own, Pairs" in refusal_of(tmp_path / "a", pairs, batch_size=4)
    assert "batch_size=None" in refusal_of(tmp_path / "b", single, batch_size=4)
    assert "divides its samples" in refusal_of(tmp_path / "c", stream, num_workers=2)
    assert "needs a GPU" in refusal_of(tmp_path / "d", a_loader(batch_size=4), pin_memory=True)


def test_a_loader_that_another_thread_reads_is_left_as_it_is(tmp_path: Path) -> None:
    batches: Queue[torch.Tensor | None] = Queue(maxsize=1)

    def load(loader: DataLoader[int]) -> None:
        for batch in loader:
            batches.put(batch)
        batches.put(None)

    with watched(tmp_path) as run:
        small = SmallTraining()
        thread = Thread(target=load, args=(a_loader(count=24, batch_size=4),))
        thread.start()
        while (batch := batches.get()) is not None:
            run.request(batch_size=8)
            small.step(batch)
        thread.join()
    assert run.samples_per_step() == [4] * 6
    assert {state for state, _ in run.answers()} == {"rejected"}


def test_one_process_of_several_keeps_its_batch_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Torch replaces the hook for good.
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        assert "several processes" in refusal_of(tmp_path, a_loader(count=12, batch_size=4), batch_size=8)
    finally:
        distributed.destroy_process_group()


def test_a_value_of_the_script_beyond_what_can_be_set_stays_out_of_the_settings(tmp_path: Path) -> None:
    loader: DataLoader[int] = DataLoader(Numbers(70_000), batch_size=66_000)
    with watched(tmp_path) as run:
        train(run, loader, before=at_step(1, run, batch_size=8))
    assert "batch_size" not in run.settings()[0][1]
    assert "66,000" in run.answers()[-1][1]


@pytest.mark.parametrize("sizes", [(3, 7), (7, 3, 5)])
def test_every_change_takes_effect_at_the_step_that_it_names(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    def change(step: int) -> None:
        if 2 <= step < 2 + len(sizes):
            run.request(batch_size=sizes[step - 2])

    with watched(tmp_path) as run:
        train(run, a_loader(count=60, batch_size=4), before=change)
    versions = run.settings()
    samples = run.samples_per_step()
    for (step, values, _), (following, _, _) in pairwise(versions):
        assert set(samples[step - 1 : following - 1]) == {values["batch_size"]}
    assert len(versions) == len(sizes) + 1
