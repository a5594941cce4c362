"""Calls of a model before its steps, as where an agent acts before it learns."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from harness.attach.untrained_calls import MANY_CALLS
from tests.attach_factories import Recorded, attached, record_each_evaluation, recorded, steps_of

_STEPS = 48


class Agent(nn.Module):
    """A network that is called as a whole or in parts."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = nn.Linear(4, 2), nn.Linear(4, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.parts(inputs)

    def parts(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.actor(inputs), self.critic(inputs)], dim=-1)


@pytest.fixture(autouse=True)
def every_evaluation_has_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    record_each_evaluation(monkeypatch)


def learned(
    home: Path, calls: int, updates: int, acting: str = "agent", *, calls_between: int = 0
) -> Recorded:
    """Act so many times without gradients before as many updates; before the other updates call the model
    `calls_between` times. `acting` is the agent or a copy of it, as a whole or in parts."""
    agent = Agent()
    actor = copy.deepcopy(agent) if acting.startswith("copy") else agent
    optimizer = torch.optim.SGD(agent.parameters(), lr=0.01)
    act, learn = (one.parts if acting.endswith("in parts") else one for one in (actor, agent))
    with attached(home) as (session, folder, guard):
        for step in range(_STEPS):
            with torch.no_grad():
                for _ in range(calls_between if step % updates else calls):
                    act(torch.randn(1, 4))
            loss = learn(torch.randn(8, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        session.end(None)
        assert guard.message is None
    return recorded(folder)


_ACTING = ("agent", "agent in parts", "copy", "copy in parts")


@pytest.mark.slow
@pytest.mark.parametrize("acting", _ACTING)
@pytest.mark.parametrize("calls", [MANY_CALLS, 100])
def test_many_calls_before_several_updates_belong_to_no_step(tmp_path: Path, calls: int, acting: str) -> None:
    log = learned(tmp_path, calls, 12, acting)
    assert len(log.steps) == _STEPS
    assert list(log.evaluations_ns) == [13, 25, 37]
    assert log.unexplained_gaps_ns() == {}


@pytest.mark.slow
@pytest.mark.parametrize("acting", _ACTING)
def test_calls_before_every_update_are_a_part_of_its_step(tmp_path: Path, acting: str) -> None:
    log = learned(tmp_path, 100, 1, acting)
    assert (len(log.steps), log.evaluations_ns, log.unexplained_gaps_ns()) == (_STEPS, {}, {})


@pytest.mark.parametrize("acting", _ACTING)
def test_few_calls_before_several_updates_are_a_part_of_the_first_one(tmp_path: Path, acting: str) -> None:
    calls = (MANY_CALLS - 1) // 2 if acting.endswith("in parts") else MANY_CALLS - 1
    log = learned(tmp_path, calls, 12, acting)
    assert (len(log.steps), log.evaluations_ns, log.unexplained_gaps_ns()) == (_STEPS, {}, {})


@pytest.mark.slow
@pytest.mark.parametrize("acting", _ACTING)
def test_many_calls_are_a_part_of_their_step_where_each_has_some(tmp_path: Path, acting: str) -> None:
    log = learned(tmp_path, 100, 12, acting, calls_between=1)
    assert (len(log.steps), log.evaluations_ns, log.unexplained_gaps_ns()) == (_STEPS, {}, {})


@pytest.mark.parametrize("delay", [1, 2])
@pytest.mark.parametrize("state", [torch.ones(1, 4), torch.ones(4)])
def test_an_agent_that_acts_with_gradients_has_the_samples_that_its_critic_learns_from(
    tmp_path: Path, state: torch.Tensor, delay: int
) -> None:
    def script() -> None:
        actor, critic = nn.Linear(4, 2), nn.Linear(4, 1)
        of_actor = torch.optim.SGD(actor.parameters(), lr=1e-6)
        of_critic = torch.optim.SGD(critic.parameters(), lr=1e-6)
        for step in range(12):
            actor(state)
            critic(torch.ones(5, 4)).mean().backward()
            of_critic.step()
            if step % delay == 0:
                of_actor.zero_grad()
                critic(actor(torch.ones(5, 4)).repeat(1, 2)).mean().backward()
                of_actor.step()
            of_critic.zero_grad()

    samples = [row.samples for row in steps_of(tmp_path, script).steps]
    assert samples[3:] == [5] * (len(samples) - 3)
    assert len(samples) == 12


def test_an_evaluation_between_the_trainings_of_copies_belongs_to_no_step(tmp_path: Path) -> None:
    base = nn.Linear(4, 2)

    def train() -> None:
        for _ in range(3):
            model = copy.deepcopy(base).train()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for _ in range(3):
                model(torch.randn(8, 4)).square().mean().backward()
                optimizer.step()
            base.eval()
            with torch.no_grad():
                base(torch.randn(5, 4))

    log = steps_of(tmp_path, train)
    assert log.samples == [8] * 9
    assert list(log.evaluations_ns) == [4, 7, 10]
