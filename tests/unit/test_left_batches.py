"""Test that a batch that a loop loads and leaves unused counts in no step, and every other one does."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.attach_factories import steps_of

_BATCH, _EPOCHS, _STEPS = 4, 4, 5
_BATCHES = 8


class Loop:
    """A model in training, and a loader with more batches than each epoch takes."""

    def __init__(self, batches: int = _BATCHES) -> None:
        self.model = nn.Linear(3, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.loader = a_loader(batches)
        self.kept: Iterator[object] = iter(())

    def learn(self, *inputs: Tensor) -> None:
        """Add the gradients of one batch, or of several as one."""
        self.model(torch.cat(inputs)).square().mean().backward()

    def step(self, *inputs: Tensor) -> None:
        """One training step."""
        self.learn(*inputs)
        self.optimizer.step()
        self.optimizer.zero_grad()


def a_loader(batches: int = _BATCHES, size: int = _BATCH) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(torch.ones(batches * size, 3)), batch_size=size)


def until_break(loop: Loop) -> None:
    """`break` at the top of the loop."""
    for number, (inputs,) in enumerate(loop.loader):
        if number == _STEPS:
            break
        loop.step(inputs)


def before_an_evaluation(loop: Loop) -> None:
    """The same, with an evaluation after each epoch."""
    until_break(loop)
    loop.model.eval()
    with torch.no_grad():
        for (inputs,) in a_loader(2, size=7):
            loop.model(inputs)
    loop.model.train()


def beside_a_range(loop: Loop) -> None:
    """`zip` takes a batch before it learns that the range has ended."""
    for (inputs,), _ in zip(loop.loader, range(_STEPS), strict=False):
        loop.step(inputs)


def with_a_kept_iterator(loop: Loop) -> None:
    """The iterator exists until the next one is there, as its name does in a script."""
    batches = iter(loop.loader)
    loop.kept = batches
    for number, (inputs,) in enumerate(batches):
        if number == _STEPS:
            break
        loop.step(inputs)


def of_a_new_loader(loop: Loop) -> None:
    """Each epoch makes a loader of its own."""
    for number, (inputs,) in enumerate(a_loader()):
        if number == _STEPS:
            break
        loop.step(inputs)


def after_a_first_batch(loop: Loop) -> None:
    """The first batch is loaded twice: before the loop, the script only reads its size."""
    assert len(next(iter(loop.loader))[0]) == _BATCH
    for (inputs,) in islice(loop.loader, _STEPS):
        loop.step(inputs)


def after_two_first_batches(loop: Loop) -> None:
    """The same, with another one for an example."""
    next(iter(loop.loader))
    after_a_first_batch(loop)


def epochs_of(home: Path, epoch: Callable[[Loop], None], loop: Loop | None = None) -> list[int]:
    """Train for some epochs under watch; return the samples of all steps but the first."""
    loop = loop or Loop()

    def script() -> None:
        for _ in range(_EPOCHS):
            epoch(loop)

    return [row.samples for row in steps_of(home, script).steps][1:]


@pytest.mark.parametrize(
    "epoch",
    [
        until_break,
        before_an_evaluation,
        beside_a_range,
        with_a_kept_iterator,
        of_a_new_loader,
        after_a_first_batch,
        after_two_first_batches,
    ],
)
def test_a_batch_that_a_script_leaves_is_of_no_step(tmp_path: Path, epoch: Callable[[Loop], None]) -> None:
    assert epochs_of(tmp_path, epoch) == [_BATCH] * (_EPOCHS * _STEPS - 1)


def test_nor_is_it_where_a_batch_has_two_updates_as_of_a_discriminator_and_a_generator(
    tmp_path: Path,
) -> None:
    critic = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)

    def epoch(loop: Loop) -> None:
        for number, (inputs,) in enumerate(loop.loader):
            if number == _STEPS:
                break
            critic(inputs).square().mean().backward()
            optimizer.step()
            loop.step(inputs)

    assert epochs_of(tmp_path, epoch) == [_BATCH] * (_EPOCHS * _STEPS - 1)


def test_nor_are_those_of_two_loaders_that_feed_each_step(tmp_path: Path) -> None:
    others = a_loader(size=3)

    def epoch(loop: Loop) -> None:
        for number, ((inputs,), (more,)) in enumerate(zip(loop.loader, others, strict=True)):
            if number == _STEPS:
                break
            loop.step(inputs, more)

    assert epochs_of(tmp_path, epoch) == [_BATCH + 3] * (_EPOCHS * _STEPS - 1)


def test_a_loader_that_is_left_as_another_one_ends_keeps_no_batch_for_the_next_epoch(tmp_path: Path) -> None:
    short = a_loader(_STEPS, size=3)

    def epoch(loop: Loop) -> None:
        for (inputs,), (more,) in zip(loop.loader, short, strict=False):
            loop.step(inputs, more)

    assert epochs_of(tmp_path, epoch) == [_BATCH + 3] * (_EPOCHS * _STEPS - 1)


def test_batches_that_were_used_count_in_the_step_that_a_later_epoch_ends(tmp_path: Path) -> None:
    updates = 0

    def epoch(loop: Loop) -> None:
        nonlocal updates
        for number, (inputs,) in enumerate(loop.loader):
            if number == _STEPS:
                break
            loop.learn(inputs)
            updates += 1
            if updates % 2 == 0:  # The fifth batch of an epoch and the first one of the next make a step.
                loop.optimizer.step()
                loop.optimizer.zero_grad()

    assert epochs_of(tmp_path, epoch) == [2 * _BATCH] * (_EPOCHS * _STEPS // 2 - 1)


def test_batches_that_are_collected_over_the_end_of_an_epoch_count(tmp_path: Path) -> None:
    loop = Loop(5)

    def endless() -> Iterator[Tensor]:
        while True:
            for (inputs,) in loop.loader:
                yield inputs

    batches = endless()

    def epoch(loop: Loop) -> None:
        for _ in range(_STEPS):
            loop.step(*islice(batches, 2))

    assert epochs_of(tmp_path, epoch, loop) == [2 * _BATCH] * (_EPOCHS * _STEPS - 1)


def nested(loop: Loop) -> None:
    """A second batch of the same loader for each."""
    for (inputs,) in islice(loop.loader, _STEPS):
        (more,) = next(iter(loop.loader))
        loop.step(inputs, more)


def two_at_a_time(loop: Loop) -> None:
    """Two passes over the loader for each step."""
    for _ in range(_STEPS):
        (inputs,), (more,) = next(iter(loop.loader)), next(iter(loop.loader))
        loop.step(inputs, more)


@pytest.mark.parametrize("epoch", [nested, two_at_a_time])
def test_two_batches_of_a_loader_that_is_opened_for_each_count(
    tmp_path: Path, epoch: Callable[[Loop], None]
) -> None:
    assert epochs_of(tmp_path, epoch) == [2 * _BATCH] * (_EPOCHS * _STEPS - 1)
