"""The learning-rate factor where a script or its optimizer sets the rate before each step, and where other
processes train the same weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from harness.attach import switches
from harness.records.run import CommandState, EventKind
from tests.session_factories import Attached, a_session

FACTOR_STEPS, RATE = 3, 0.5


class SetsItsRate(torch.optim.SGD):
    """An optimizer that sets its rate at the beginning of its step."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["lr"] = RATE
        super().step(closure)


def trained(home: Path, kind: type[torch.optim.Optimizer], *, sets_rate: bool) -> tuple[float, Attached]:
    """Return how far a weight with a gradient of 1 moved in the steps under a factor of 0.1."""
    model = nn.Linear(1, 1, bias=False)
    optimizer = kind(model.parameters(), lr=RATE)  # type: ignore[call-arg]
    weight = 0.0
    with a_session(home) as attached:
        for step in range(3 + FACTOR_STEPS):
            if step == 2:
                attached.ask(learning_rate_factor=0.1)  # In effect from the step after this one on.
            if step == 3:
                weight = model.weight.item()
            if sets_rate:
                for group in optimizer.param_groups:
                    group["lr"] = RATE
            optimizer.zero_grad()
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
    return weight - model.weight.item(), attached


def warnings(attached: Attached) -> list[str]:
    return [event.message for event in attached.events() if event.kind == EventKind.WARNING]


def test_a_rate_that_the_script_sets_before_each_step_has_the_factor(tmp_path: Path) -> None:
    moved, attached = trained(tmp_path, torch.optim.SGD, sets_rate=True)
    assert moved == pytest.approx(FACTOR_STEPS * 0.1 * RATE)
    assert warnings(attached) == []


def test_an_optimizer_that_sets_its_rate_in_its_step_is_reported_once(tmp_path: Path) -> None:
    moved, attached = trained(tmp_path, SetsItsRate, sets_rate=False)
    assert moved == pytest.approx(FACTOR_STEPS * RATE)
    (message,) = warnings(attached)
    assert message.startswith("SetsItsRate sets its learning rate in its step")
    assert "learning_rate_factor=0.1 has no effect" in message


def test_one_process_of_several_keeps_its_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switches, "is_one_of_several", lambda: True)
    moved, attached = trained(tmp_path, torch.optim.SGD, sets_rate=False)
    assert moved == pytest.approx(FACTOR_STEPS * RATE)
    answer = attached.answer("c1")
    assert answer.state == CommandState.REJECTED
    assert "several processes, and this run has one of them" in answer.message
    with attached.log() as log:
        assert "several processes" in log.script.unavailable_settings()["learning_rate_factor"]
