"""The samples of scripts that call a model several times before a backward pass."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from harness.attach.batches import rows_of
from tests.attach_factories import steps_of

_STEPS = 12
_DATA = torch.linspace(-1, 1, 40 * 4).view(40, 4).clone()
_SEQUENCES = torch.ones(6, 10, 4)


def with_own_slices(step: int) -> Iterable[Tensor]:
    """Ten rows of a tensor of the step, in slices of four, four and two."""
    rays = _DATA[torch.arange(10) + step]
    return rays[:4], rays[4:8], rays[8:]


def with_a_single_row_at_the_end(step: int) -> Iterable[Tensor]:
    """Nine rows, as slices of four, four and one."""
    rays = _DATA[torch.arange(9) + step]
    return [rays[row : row + 4] for row in range(0, 9, 4)]


def with_rows_of_all_data(step: int) -> Iterable[Tensor]:
    """Ten rows in slices of five, which are not the first ones of their tensor."""
    return _DATA[step : step + 5], _DATA[step + 5 : step + 10]


def with_two_views(step: int) -> Iterable[Tensor]:
    """Two views of the same five samples, as of a siamese network."""
    return _DATA[step : step + 5] + 0.1, _DATA[step : step + 5] - 0.1


def with_pairs(step: int) -> Iterable[Tensor]:
    """Anchors, and their positives in another tensor. In one step these have the rows after the anchors."""
    return _DATA[5 * (step % 4) :][:5], (-_DATA)[5 * (step % 4 + 1) :][:5]


def with_stacked_views(step: int) -> Iterable[Tensor]:
    """Two views of the same five samples, in one tensor."""
    return torch.stack([_DATA[:5], _DATA[5:10]])


def with_the_same_again(step: int) -> Iterable[Tensor]:
    """The same five samples twice, as for two random masks."""
    batch = _DATA[step : step + 5]
    return batch[:], batch[:]


def with_time_steps(step: int) -> Iterable[Tensor]:
    """A sequence of six time steps of ten samples."""
    return _SEQUENCES


def with_time_steps_of_one_sample(_step: int) -> Iterable[Tensor]:
    """A sequence of six time steps of a single sample."""
    return [_DATA[step : step + 1] for step in range(6)]


def overlapping(step: int) -> Iterable[Tensor]:
    """States and those that follow them, of an agent."""
    return _DATA[0:5], _DATA[1:6]


def with_words(step: int) -> Iterable[Tensor]:
    """Three words of several lengths, with a row per letter."""
    return [_DATA[step : step + letters].clone() for letters in (7, 5, 7)]


def after_a_call_of_another_size(step: int) -> Iterable[Tensor]:
    """As where the call fails, and the script goes on with another batch."""
    return [_DATA[step : step + 3].clone(), _DATA[step : step + 5].clone()]


def acting_before_it_learns(step: int) -> Iterable[Tensor]:
    """Three states of an agent, one after the other, and then five together."""
    return [*(_DATA[row].clone()[None] for row in range(3)), _DATA[step : step + 5].clone()]


@pytest.mark.parametrize(
    ("calls", "samples"),
    [
        (with_words, 0),
        (after_a_call_of_another_size, 5),
        (acting_before_it_learns, 5),
        (with_own_slices, 10),
        (with_a_single_row_at_the_end, 9),
        (with_rows_of_all_data, 10),
        (with_two_views, 5),
        (with_pairs, 5),
        (with_stacked_views, 5),
        (with_the_same_again, 5),
        (with_time_steps, 10),
        (with_time_steps_of_one_sample, 1),
        (overlapping, 5),
    ],
)
def test_only_consecutive_slices_of_one_tensor_count_together(
    tmp_path: Path, calls: Callable[[int], Iterable[Tensor]], samples: int
) -> None:
    def script() -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for step in range(_STEPS):
            optimizer.zero_grad()
            torch.cat([model(inputs) for inputs in calls(step)]).square().mean().backward()
            optimizer.step()

    assert [row.samples for row in steps_of(tmp_path, script).steps] == [samples] * _STEPS


def test_tokens_of_consecutive_slices_count_together_too(tmp_path: Path) -> None:
    def script() -> None:
        model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(_STEPS):
            tokens = torch.zeros(6, 5, dtype=torch.int64)
            optimizer.zero_grad()
            torch.cat([model(part) for part in tokens.chunk(3)]).mean().backward()
            optimizer.step()

    steps = steps_of(tmp_path, script).steps
    assert [(row.samples, row.tokens) for row in steps] == [(6, 30)] * _STEPS


def test_steps_with_one_slice_and_with_several_are_counted_where_they_alternate(tmp_path: Path) -> None:
    def script() -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for step in range(_STEPS):
            rays = _DATA[torch.arange(4 if step % 3 else 10)]
            optimizer.zero_grad()
            torch.cat([model(part) for part in rays.split(4)]).square().mean().backward()
            optimizer.step()

    assert [row.samples for row in steps_of(tmp_path, script).steps] == [10, 4, 4] * 4


@pytest.mark.parametrize(
    "inputs",
    [
        _DATA,
        _DATA.t()[:2],
        _DATA[:, :2],
        _DATA[0],
        torch.ones(1, 4).expand(6, 4)[2:4],
        torch.ones(6, 2).to_sparse().transpose(0, 1),
        torch.tensor(1.0),
        torch.ones(3).sum()[None][:1][0],
        None,
        [_DATA[:2]],
    ],
)
def test_what_is_no_slice_of_rows_has_none(inputs: object) -> None:
    assert rows_of((inputs,)) is None
    assert rows_of(()) is None
