"""Test models that a script calls by methods of theirs, which call modules within them only."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.attach_factories import Recorded, steps_of

DISCRIMINATED, ACTED = 8, 16
TURN = 6
ACTS = 12


class Policy(nn.Module):
    """Has layers that its methods call, as do the policies of reinforcement learning."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
        self.unused = nn.Linear(4, 4)

    def evaluate(self, inputs: Tensor) -> Tensor:
        """Return the values of `inputs`."""
        outputs: Tensor = self.base(inputs)
        return outputs


class PolicyWithForward(Policy):
    """May be called itself, as may the modules of Lightning, which call others in their methods too."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the values of `inputs`."""
        return self.evaluate(inputs)


def _turns(home: Path, turns: int) -> Recorded:
    def train() -> None:
        torch.manual_seed(0)
        discriminator, policy = nn.Linear(4, 2), Policy()
        first = torch.optim.SGD(discriminator.parameters(), lr=0.1)
        second = torch.optim.SGD(policy.parameters(), lr=0.1)
        samples = TensorDataset(torch.randn(TURN * DISCRIMINATED, 4))
        loader = DataLoader(samples, batch_size=DISCRIMINATED)
        for _ in range(turns):
            with torch.no_grad():
                for _ in range(ACTS):
                    policy.evaluate(torch.randn(1, 4))
            for (inputs,) in loader:
                first.zero_grad()
                discriminator(inputs).square().mean().backward()
                first.step()
            for _ in range(TURN):
                second.zero_grad()
                policy.evaluate(torch.randn(ACTED, 4)).square().mean().backward()
                second.step()

    return steps_of(home, train)


def test_a_model_that_is_called_by_a_method_after_another_training_has_its_forward_pass_and_samples(
    tmp_path: Path,
) -> None:
    """Its modules are searched for again where a step computes gradients and no followed model was called."""
    steps = _turns(tmp_path, 3)

    last = steps.steps[-TURN:]
    assert [row.samples for row in last] == [ACTED] * TURN
    assert all(row.forward_ns for row in last)
    assert {row.samples for row in steps.steps[-2 * TURN : -TURN]} == {DISCRIMINATED}


def test_its_calls_without_gradients_before_a_turn_are_evaluation(tmp_path: Path) -> None:
    """As those of a model that is called itself."""
    steps = _turns(tmp_path, 3)

    assert steps.evaluations_ns


def test_each_of_several_such_models_is_followed_in_its_turn(tmp_path: Path) -> None:
    """One after another: while the second one trains the third one is not called."""
    models = [Policy(), Policy(), Policy()]

    def train() -> None:
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
        for _ in range(2):
            for model, optimizer in zip(models, optimizers, strict=True):
                for _ in range(2 * TURN):
                    optimizer.zero_grad()
                    model.evaluate(torch.randn(ACTED, 4)).square().mean().backward()
                    optimizer.step()

    steps = steps_of(tmp_path, train)

    assert all(row.forward_ns for row in steps.steps[-4 * TURN :])


@pytest.mark.parametrize("container", [nn.ModuleList, nn.Sequential])
@pytest.mark.parametrize("is_one_optimizer", [False, True])
def test_the_members_of_a_model_that_are_trained_one_after_another_are_followed(
    tmp_path: Path, container: type[nn.ModuleList | nn.Sequential], is_one_optimizer: bool
) -> None:
    """As of a classifier that has a model for each class, or of layers that are trained one by one."""
    members = [nn.Sequential(nn.Linear(4, 2), nn.Tanh()) for _ in range(3)]
    model = container(members) if container is nn.ModuleList else container(*members)
    owned = [model] * 3 if is_one_optimizer else members

    def train() -> None:
        optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in owned]
        for member, optimizer in zip(members, optimizers, strict=True):
            for _ in range(TURN):
                optimizer.zero_grad()
                member(torch.randn(ACTED, 4)).square().mean().backward()
                optimizer.step()

    steps = steps_of(tmp_path, train).steps

    assert [row.samples for row in steps] == [ACTED] * len(steps)
    assert all(row.forward_ns for row in steps)


def test_torch_has_no_hooks_left_once_the_modules_are_known(tmp_path: Path) -> None:
    """The hooks of all modules are there for a few steps."""
    before = len(nn.modules.module._global_forward_pre_hooks), len(nn.modules.module._global_forward_hooks)

    _turns(tmp_path, 2)

    after = len(nn.modules.module._global_forward_pre_hooks), len(nn.modules.module._global_forward_hooks)
    assert after == before


@pytest.mark.parametrize("ends_early", [False, True])
def test_the_hooks_go_where_nothing_within_the_model_is_called(tmp_path: Path, ends_early: bool) -> None:
    """As for a model of which a script uses the weights alone, also if it ends while calls are noted."""
    before = len(nn.modules.module._global_forward_pre_hooks)

    def train() -> None:
        called, weights = nn.Linear(4, 2), Policy()
        first = torch.optim.SGD(called.parameters(), lr=0.1)
        second = torch.optim.SGD(weights.parameters(), lr=0.1)
        for _ in range(4):
            called(torch.randn(8, 4)).mean().backward()
            first.step()
        for _ in range(4 if ends_early else 40):
            weights.base[0].weight.square().sum().backward()  # type: ignore[operator]
            second.step()

    steps = steps_of(tmp_path, train)

    assert len(nn.modules.module._global_forward_pre_hooks) == before
    assert steps.steps[-1].samples == 0


def test_calls_of_other_modules_do_not_end_the_search_for_those_that_a_method_calls(tmp_path: Path) -> None:
    """As transforms of samples, which are modules of the same kind as models that are followed."""

    def train() -> None:
        other, model = nn.Sequential(nn.Linear(4, 4)), Policy()
        transform = nn.Sequential(nn.Dropout(0.1))
        first = torch.optim.SGD(other.parameters(), lr=0.1)
        for _ in range(TURN):
            first.zero_grad()
            other(torch.randn(ACTED, 4)).square().mean().backward()
            first.step()
        second = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2 * TURN):
            batch = torch.cat([transform(torch.randn(1, 4)) for _ in range(2 * ACTED)])
            second.zero_grad()
            model.evaluate(batch).square().mean().backward()
            second.step()

    steps = steps_of(tmp_path, train).steps[-TURN:]
    assert [row.samples for row in steps] == [2 * ACTED] * TURN
    assert all(row.forward_ns for row in steps)


@pytest.mark.parametrize("folds", [2, 3])
def test_the_same_part_of_the_next_folds_model_is_followed_from_its_first_step_on(
    tmp_path: Path, folds: int
) -> None:
    """As of a further Lightning module: it may be called, but the one before was not."""
    loader = DataLoader(TensorDataset(torch.randn(TURN * ACTED, 4)), batch_size=ACTED)

    def train() -> None:
        for _ in range(folds):
            model = PolicyWithForward()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for (inputs,) in loader:
                optimizer.zero_grad()
                model.evaluate(inputs).square().mean().backward()
                optimizer.step()

    steps = steps_of(tmp_path, train).steps
    assert [row.samples for row in steps] == [ACTED] * TURN * folds
    assert all(row.forward_ns for row in steps)
