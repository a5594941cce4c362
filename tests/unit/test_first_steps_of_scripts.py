"""Test the samples of a script's first step: its first batch is loaded before the watch opens."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.attach_factories import steps_of

_BATCH, _STEPS = 4, 3


class _Script:
    """A model, an optimizer and loaders, with the loops of scripts."""

    def __init__(self) -> None:
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def loader(self, batches: int) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(TensorDataset(torch.ones(batches * _BATCH, 4)), batch_size=_BATCH)

    def compute(self, inputs: Tensor) -> None:
        self.model(inputs).square().mean().backward()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train(self, batches: Any) -> None:
        for (inputs,) in batches:
            self.compute(inputs)
            self.update()


def _accumulate(script: _Script) -> None:
    for number, (inputs,) in enumerate(script.loader(3 * _STEPS), start=1):
        script.compute(inputs)
        if number % 3 == 0:
            script.update()


def _accumulate_with_a_teacher(script: _Script) -> None:
    teacher = nn.Linear(4, 2).eval()
    for number, (inputs,) in enumerate(script.loader(3 * _STEPS), start=1):
        with torch.no_grad():
            targets = teacher(inputs)
        (script.model(inputs) - targets).square().mean().backward()
        if number % 3 == 0:
            script.update()


def _load_the_batches_of_a_step_at_once(script: _Script) -> None:
    """As `Trainer.get_batch_samples` of Hugging Face's transformers."""
    batches = iter(script.loader(3 * _STEPS))
    for _ in range(_STEPS):
        for (inputs,) in [next(batches) for _ in range(3)]:
            script.compute(inputs)
        script.update()


def _load_the_batches_of_a_step_and_one_ahead(script: _Script) -> None:
    """As the same with a loader of accelerate's."""
    batches = iter(script.loader(2 * _STEPS + 1))
    following = next(batches)
    for _ in range(_STEPS):
        loaded = [following, *(next(batches) for _ in range(2))]
        following = loaded.pop()
        for (inputs,) in loaded:
            script.compute(inputs)
        script.update()


def _drop_batches_first(script: _Script) -> None:
    batches = iter(script.loader(2 + _STEPS))
    next(batches), next(batches)
    script.train(batches)


def _evaluate_on_the_same_pass_first(script: _Script) -> None:
    batches = iter(script.loader(3 * (1 + _STEPS)))
    with torch.no_grad():
        for _ in range(3):
            script.model(next(batches)[0])
    for _ in range(_STEPS):
        for (inputs,) in [next(batches) for _ in range(3)]:
            script.compute(inputs)
        script.update()


def _compute_the_last_batch_in_a_closure(script: _Script, calls: int) -> None:
    """As Lightning with `accumulate_grad_batches`."""
    for number, (inputs,) in enumerate(script.loader(3 * _STEPS), start=1):
        if number % 3:
            script.compute(inputs)
            continue

        def closure(inputs: Tensor = inputs) -> float:
            for _ in range(calls):  # As LBFGS.
                script.compute(inputs)
            return 0.0

        script.optimizer.step(closure)
        script.optimizer.zero_grad()


def _compute_each_batch_twice(script: _Script) -> None:
    for (inputs,) in script.loader(_STEPS):
        script.compute(inputs)
        script.compute(inputs)
        script.update()


def _read_two_loaders(script: _Script) -> None:
    for (one,), (other,) in zip(script.loader(_STEPS), script.loader(_STEPS), strict=True):
        script.compute(one)
        script.compute(other)
        script.update()


def _read_another_loader_after_the_first_call(script: _Script) -> None:
    """As semi-supervised learning: labeled samples, then twice as many others."""
    others = iter(DataLoader(TensorDataset(torch.ones(2 * _STEPS * _BATCH, 4)), batch_size=2 * _BATCH))
    for (labeled,) in script.loader(_STEPS):
        loss = script.model(labeled).square().mean()
        (other,) = next(others)
        (loss + script.model(other).square().mean()).backward()
        script.update()


def _look_at_a_batch_first(script: _Script) -> None:
    loader = script.loader(_STEPS)
    next(iter(loader))
    script.train(loader)


def _evaluate_first(script: _Script) -> None:
    with torch.no_grad():
        for (inputs,) in script.loader(2):
            script.model(inputs)
    script.train(script.loader(_STEPS))


def _evaluate_on_kept_batches_first(script: _Script) -> None:
    evaluated, training = iter(script.loader(2)), iter(script.loader(_STEPS))
    script.model.eval()
    script.model(next(evaluated)[0])
    script.model.train()
    script.train(training)


def _load_one_batch_ahead(script: _Script) -> None:
    def ahead() -> Iterator[list[Tensor]]:
        batches = iter(script.loader(_STEPS))
        batch = next(batches)
        for following in batches:
            yield batch
            batch = following
        yield batch

    script.train(ahead())


def _load_the_next_batch_after_the_model_was_called(script: _Script) -> None:
    batches: Iterator[list[Tensor]] = iter(script.loader(_STEPS))
    batch: list[Tensor] | None = next(batches)
    while batch is not None:
        loss = script.model(batch[0]).square().mean()
        batch = next(batches, None)
        loss.backward()
        script.update()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loop", "samples"),
    [
        (_accumulate, 3 * _BATCH),
        (_accumulate_with_a_teacher, 3 * _BATCH),
        (partial(_compute_the_last_batch_in_a_closure, calls=1), 3 * _BATCH),
        (partial(_compute_the_last_batch_in_a_closure, calls=4), 3 * _BATCH),
        (_load_the_batches_of_a_step_at_once, 3 * _BATCH),
        (_load_the_batches_of_a_step_and_one_ahead, 2 * _BATCH),
        (_drop_batches_first, _BATCH),
        (_evaluate_on_the_same_pass_first, 3 * _BATCH),
        (_compute_each_batch_twice, _BATCH),
        (_read_two_loaders, 2 * _BATCH),
        (_read_another_loader_after_the_first_call, 3 * _BATCH),
        (_look_at_a_batch_first, _BATCH),
        (_evaluate_first, _BATCH),
        (_evaluate_on_kept_batches_first, _BATCH),
        (_load_one_batch_ahead, _BATCH),
        (_load_the_next_batch_after_the_model_was_called, _BATCH),
    ],
)
def test_the_first_step_has_as_many_samples_as_the_others(
    tmp_path: Path, loop: Callable[[_Script], None], samples: int
) -> None:
    log = steps_of(tmp_path, lambda: loop(_Script()))
    assert [row.samples for row in log.steps] == [samples] * _STEPS


def test_gradients_before_an_optimizer_is_created_make_no_step_of_their_own(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)

    def train() -> None:  # As llm.c, which writes down the gradients of a batch first.
        model(torch.ones(_BATCH, 4)).square().mean().backward()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(_STEPS):
            optimizer.zero_grad()
            model(torch.ones(_BATCH, 4)).square().mean().backward()
            optimizer.step()

    assert [step.samples for step in steps_of(tmp_path, train).steps] == [2 * _BATCH] + [_BATCH] * (
        _STEPS - 1
    )


def test_an_optimizer_of_another_model_does_not_end_the_steps_of_one_without(tmp_path: Path) -> None:
    model, other = nn.Linear(4, 2), nn.Linear(4, 2)

    def train() -> None:
        model(torch.ones(_BATCH, 4)).square().mean().backward()
        optimizer = torch.optim.SGD(other.parameters(), lr=0.01)
        for _ in range(_STEPS):
            model.zero_grad()
            model(torch.ones(_BATCH, 4)).square().mean().backward()
        optimizer.zero_grad()

    assert len(steps_of(tmp_path, train).steps) == 1 + _STEPS


def test_a_copy_with_computed_parameters_makes_no_step_of_its_own(tmp_path: Path) -> None:
    """As for the tasks of meta-learning (MAML): gradients pass through the copy to the model."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def compute_for_task() -> None:
        learner = nn.Linear(4, 2)
        for name, weight in model.named_parameters():
            learner._parameters[name] = weight.clone()  # type: ignore[assignment]
        learner(torch.ones(_BATCH, 4)).square().mean().backward()
        learner(torch.ones(_BATCH, 4))  # The accuracy on the task.

    def train() -> None:
        for _ in range(_STEPS):
            optimizer.zero_grad()
            for _ in range(2):
                compute_for_task()
            optimizer.step()

    assert len(steps_of(tmp_path, train).steps) == _STEPS


def test_a_first_step_of_samples_from_loaders_that_take_turns_counts_each_once(tmp_path: Path) -> None:
    """As of a stream of several tasks, which joins the samples of a batch itself."""
    script = _Script()
    loaders = [DataLoader(TensorDataset(torch.ones(9 * _BATCH, 4)), batch_size=1) for _ in range(2)]

    def train() -> None:
        tasks = [iter(loader) for loader in loaders]
        for _ in range(_STEPS):
            script.compute(torch.cat([next(tasks[number % 2])[0] for number in range(2 * _BATCH)]))
            script.update()

    assert [row.samples for row in steps_of(tmp_path, train).steps] == [2 * _BATCH] * _STEPS
