"""The number of Python calls that a watched step adds, which does not depend on the machine or its load."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stepscope
from tests.attach_factories import attached

_STEPS = 60
# A little more than there are. An accumulated step that begins like a plain one makes fewer.
_MOST_ATTACHED, _MOST_IN_TWO_LINES, _MOST_ACCUMULATED = 8, 11, 106
_OURS = tuple(str(Path(__file__).parents[2] / package) for package in ("harness", "stepscope"))


class Inherited(nn.Linear):
    """A model of a class that is derived from the class of another one."""


class Loop:
    """A plain loop, which counts the calls of Stepscope's functions in each step of `micro_batches`."""

    def __init__(self, micro_batches: int = 1) -> None:
        self._micro_batches = micro_batches
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.loader = DataLoader(TensorDataset(torch.zeros(2 * _STEPS * micro_batches, 4)), batch_size=2)
        self.counts: list[int] = []

    def train(self, batches: Iterable[list[torch.Tensor]], log: Callable[[torch.Tensor], None]) -> int:
        """Take all steps; return the least count of the settled ones: on a machine that is busy with others,
        most of them may be long enough for a reading of the memory each."""
        with self._counting():
            for number, (inputs,) in enumerate(batches, start=1):
                loss = self.model(inputs).square().mean()
                loss.backward()
                if number % self._micro_batches == 0:
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                    log(loss)
                    self.counts.append(0)
        return min(self.counts[len(self.counts) // 2 : -1])

    @contextmanager
    def _counting(self) -> Iterator[None]:
        self.counts = [0]

        def profile(frame: FrameType, event: str, _argument: object) -> None:
            if event == "call" and frame.f_code.co_filename.startswith(_OURS):
                self.counts[-1] += 1

        before = sys.getprofile()
        sys.setprofile(profile)
        try:
            yield
        finally:
            sys.setprofile(before)


def test_a_step_under_stepscope_run_makes_few_calls(tmp_path: Path) -> None:
    loop = Loop()
    with attached(tmp_path) as (session, _, guard):
        calls = loop.train(loop.loader, lambda loss: None)
        session.end(None)
    assert guard.message is None
    assert 0 < calls <= _MOST_ATTACHED


def test_a_step_without_a_loader_makes_few_calls(tmp_path: Path) -> None:
    loop = Loop()
    with attached(tmp_path) as (session, _, guard):
        calls = loop.train(([inputs] for inputs in torch.zeros(_STEPS, 2, 4)), lambda loss: None)
        session.end(None)
    assert guard.message is None
    assert 0 < calls <= _MOST_ATTACHED


def test_a_step_between_the_two_lines_makes_few_calls(tmp_path: Path) -> None:
    loop = Loop()
    with stepscope.watch(loop.model, loop.optimizer, home=tmp_path) as run:
        calls = loop.train(run.steps(loop.loader), lambda loss: run.log(loss=loss))
    assert 0 < calls <= _MOST_IN_TWO_LINES


def test_a_step_of_two_micro_batches_makes_few_calls_for_its_two_loads_passes_and_one_update(
    tmp_path: Path,
) -> None:
    loop = Loop(micro_batches=2)
    with attached(tmp_path) as (session, _, guard):
        calls = loop.train(loop.loader, lambda loss: None)
        session.end(None)
    assert guard.message is None
    assert 0 < calls <= _MOST_ACCUMULATED


def test_a_bare_step_makes_none() -> None:
    loop = Loop()
    assert loop.train(loop.loader, lambda loss: None) == 0


def test_a_model_of_a_derived_class_is_called_through_the_stand_in_of_its_base_class(
    tmp_path: Path,
) -> None:
    first, second = nn.Linear(4, 2), Inherited(4, 2)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.01)
    with attached(tmp_path) as (session, _, guard):
        for _ in range(3):
            (first(torch.zeros(2, 4)) + second(torch.zeros(2, 4))).square().mean().backward()
            optimizer.step()
        original = nn.Module.__call__
        assert first.__call__.__func__.__wrapped__ is original  # type: ignore[attr-defined]
        assert Inherited.__call__ is nn.Linear.__call__
        session.end(None)
    assert guard.message is None
    assert nn.Linear.__call__ is original
