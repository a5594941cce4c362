"""Test the samples of steps of a script that loads its batches ahead, as Accelerate does."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.attach_factories import steps_of
from tests.session_factories import a_session


def ahead(loader: DataLoader[Any]) -> Iterator[Any]:
    """The batches of a loader, each returned once the next one is loaded."""
    batches = iter(loader)
    batch = next(batches)
    for following in batches:
        yield batch
        batch = following
    yield batch


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("micro_batches", "expected"),
    [(1, [4, 4, 4, 4, 3] * 3), (2, [8, 8, 7, 8, 7, 8, 8])],
)
def test_batches_that_are_loaded_ahead_are_of_the_step_that_uses_them(
    tmp_path: Path, workers: int, micro_batches: int, expected: list[int]
) -> None:
    data: Any = torch.ones(19, 2)
    loader: DataLoader[Any] = DataLoader(data, batch_size=4, num_workers=workers)

    def script() -> None:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        batches = (batch for _ in range(3) for batch in ahead(loader))
        for _ in expected:
            for _ in range(micro_batches):
                model(next(batches)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    samples = [row.samples for row in steps_of(tmp_path, script).steps]
    first_exact = 4 if micro_batches == 1 else 2  # At the end of the first pass.
    assert samples[first_exact:] == expected[first_exact:]


class OnMapping(nn.Module):
    """Takes a batch with a vector of floats in front: its length may be no number of samples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        mean: torch.Tensor = self.layer(batch["inputs"]).mean()
        return mean


@pytest.mark.parametrize("micro_batches", [1, 2, 3])
@pytest.mark.parametrize("is_ahead", [True, False])
def test_the_first_step_has_the_batches_of_its_backward_passes_where_inputs_have_no_known_size(
    tmp_path: Path, is_ahead: bool, micro_batches: int
) -> None:
    data: Any = [{"index": torch.tensor([0.5]), "inputs": torch.ones(2)} for _ in range(40)]

    def collate(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        return {
            "index": torch.cat([sample["index"] for sample in samples]),
            "inputs": torch.stack([sample["inputs"] for sample in samples]),
        }

    loader: DataLoader[Any] = DataLoader(data, batch_size=4, collate_fn=collate)

    def script() -> None:
        model = OnMapping()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        for number, batch in enumerate(ahead(loader) if is_ahead else loader, start=1):
            model(batch).backward()
            if number % micro_batches == 0:
                optimizer.step()
                optimizer.zero_grad()

    assert steps_of(tmp_path, script).steps[0].samples == 4 * micro_batches


def test_a_batch_that_is_loaded_between_a_call_and_its_backward_pass_skips_none(tmp_path: Path) -> None:
    data: Any = torch.ones(20, 2)
    loader: DataLoader[Any] = DataLoader(data, batch_size=4)

    def script() -> None:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        for _ in range(3):
            batches = iter(loader)
            batch = next(batches)
            while batch is not None:
                loss = model(batch).mean()
                batch = next(batches, None)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()

    assert [row.samples for row in steps_of(tmp_path, script).steps] == [4] * 15


def test_the_end_of_a_pass_is_noticed_in_a_step_that_might_have_been_a_plain_one(tmp_path: Path) -> None:
    """As with Accelerate: four micro-batches, and an update at the end of each epoch."""
    data: Any = torch.ones(40, 2)

    def script() -> None:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        loader: DataLoader[Any] = DataLoader(data, batch_size=4)
        for _ in range(2):
            for number, batch in enumerate(ahead(loader), start=1):
                model(batch).mean().backward()
                if number in (4, 8, 10):
                    optimizer.step()
                    optimizer.zero_grad()

    samples = [row.samples for row in steps_of(tmp_path, script).steps]
    assert samples == [16, 16, 8] * 2


def test_a_loader_that_takes_the_place_of_another_is_loaded_ahead_as_that_was(tmp_path: Path) -> None:
    data: Any = torch.ones(19, 2)

    def script() -> None:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        for _ in range(3):
            for batch in ahead(DataLoader(data, batch_size=4)):
                model(batch).mean().backward()
                optimizer.step()
                optimizer.zero_grad()

    samples = [row.samples for row in steps_of(tmp_path, script).steps]
    assert samples[4:] == [3] + [4, 4, 4, 4, 3] * 2


def test_a_change_names_the_batches_that_the_script_has_loaded_ahead(tmp_path: Path) -> None:
    data: Any = torch.ones(19, 2)
    loader: DataLoader[Any] = DataLoader(data, batch_size=4)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    requests, sizes = [], []
    with a_session(tmp_path) as attached:
        for epoch in range(2):
            for number, batch in enumerate(ahead(loader)):
                if (epoch, number) == (1, 1):
                    requests.append(attached.ask(batch_size=2))
                model(batch).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                sizes.append(len(batch))
    answer = attached.answer(requests[0])
    assert sizes[answer.step - 1 : answer.step + 1] == [4, 2]
    assert "loads batches ahead" in answer.message


def test_the_first_step_has_the_batches_of_both_loaders_in_all_its_micro_batches(tmp_path: Path) -> None:
    labeled: DataLoader[Any] = DataLoader(torch.ones(40, 2), batch_size=4)  # type: ignore[arg-type]
    more: DataLoader[Any] = DataLoader(torch.ones(40, 2), batch_size=3)  # type: ignore[arg-type]

    def script() -> None:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        for number, (batch, unlabeled) in enumerate(zip(labeled, more, strict=False), start=1):
            (model(batch).mean() + model(unlabeled).mean()).backward()
            if number % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()

    assert [row.samples for row in steps_of(tmp_path, script).steps] == [14] * 5


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("slices", [1, 2])
def test_batches_of_a_pass_that_are_loaded_at_once_count_in_the_steps_that_use_them(
    tmp_path: Path, micro_batches: int, slices: int
) -> None:
    loader: DataLoader[Any] = DataLoader(torch.ones(24, 2), batch_size=4)  # type: ignore[arg-type]

    def script() -> None:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        for _ in range(3):
            for number, batch in enumerate(list(loader), start=1):
                sum(model(part).mean() for part in batch.chunk(slices)).backward()
                if number % micro_batches == 0:
                    optimizer.step()
                    optimizer.zero_grad()

    samples = [row.samples for row in steps_of(tmp_path, script).steps]
    assert samples == [4 * micro_batches] * (18 // micro_batches)


def test_a_pass_that_is_loaded_at_once_amid_the_micro_batches_of_a_step_counts_as_they_are_used(
    tmp_path: Path,
) -> None:
    loader: DataLoader[Any] = DataLoader(torch.ones(19, 2), batch_size=4)  # type: ignore[arg-type]

    def script() -> None:
        model = nn.Linear(2, 1)
        optimizer, samples = torch.optim.SGD(model.parameters(), lr=1e-6), 0
        for _ in range(3):
            for batch in list(loader):
                model(batch).mean().backward()
                samples += len(batch)
                if samples >= 8:
                    optimizer.step()
                    optimizer.zero_grad()
                    samples = 0

    assert [row.samples for row in steps_of(tmp_path, script).steps] == [8, 8, 11, 8, 11, 8]


def test_batches_of_a_pass_that_is_loaded_at_once_are_not_those_of_one_step_where_inputs_say_nothing(
    tmp_path: Path,
) -> None:
    loader: DataLoader[Any] = DataLoader(-torch.ones(16), batch_size=4)  # type: ignore[arg-type]

    def script() -> None:
        scale = nn.PReLU()
        optimizer = torch.optim.SGD(scale.parameters(), lr=1e-6)
        for _ in range(3):
            for ages in list(loader):
                scale(ages).mean().backward()
                optimizer.step()
                optimizer.zero_grad()

    assert not any(row.samples for row in steps_of(tmp_path, script).steps[1:])


def test_the_last_batches_of_the_first_pass_are_of_the_steps_that_use_them(tmp_path: Path) -> None:
    loader: DataLoader[Any] = DataLoader(torch.ones(19, 2), batch_size=4)  # type: ignore[arg-type]

    def script() -> None:
        model = nn.Linear(2, 1)
        optimizers = [torch.optim.SGD([weights], lr=1e-6) for weights in model.parameters()]
        for _ in range(2):
            for batch in ahead(loader):
                model(batch).mean().backward()
                for optimizer in optimizers:
                    optimizer.step()

    assert [row.samples for row in steps_of(tmp_path, script).steps] == [4, 4, 4, 4, 3] * 2
