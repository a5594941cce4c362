"""Keyword arguments of a script with the names of parameters of Stepscope's stand-ins."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from harness.records.run import CommandKind
from tests.attach_factories import attached, recorded
from tests.train_factories import a_command

_KEYWORDS = {"model": 1, "module": 2, "optimizer": 3, "scaler": 4, "loader": 5, "subclass": 6}
_STEPS = 12


class Net(nn.Module):
    """A model that takes any keyword, first without gradients, as the target network of an agent."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, inputs: torch.Tensor, **keywords: Any) -> torch.Tensor:
        assert keywords == _KEYWORDS
        outputs: torch.Tensor = self.layer(inputs)
        return outputs


class Descent(torch.optim.SGD):
    """An optimizer that takes any keyword, where it is made and in its steps."""

    def __init__(self, parameters: Any, **keywords: Any) -> None:
        assert keywords == _KEYWORDS
        super().__init__(parameters, lr=0.01)

    def step(self, closure: Any = None, **keywords: Any) -> None:  # type: ignore[override]
        assert keywords == _KEYWORDS
        super().step(closure)


@pytest.mark.parametrize("amp", ["off", "bf16"])
def test_a_model_and_an_optimizer_get_their_keywords(tmp_path: Path, amp: str) -> None:
    with attached(tmp_path) as (session, folder, guard):
        net = Net()
        optimizer = Descent(net.parameters(), **_KEYWORDS)
        for step in range(_STEPS):
            if step == _STEPS // 2 and amp != "off":
                session.inbox.put(a_command(CommandKind.SET, json.dumps({"amp": amp})))
            with torch.no_grad():
                net(torch.ones(2, 4), **_KEYWORDS)
            loss = net(torch.ones(2, 4), **_KEYWORDS).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step(**_KEYWORDS)
        session.end(None)
        assert guard.message is None
    assert len(recorded(folder).steps) == _STEPS


def test_a_loader_is_derived_with_its_keywords(tmp_path: Path) -> None:
    taken: dict[str, Any] = {}

    class Base:
        def __init_subclass__(cls, **keywords: Any) -> None:
            taken.update(keywords)
            super().__init_subclass__()

    with attached(tmp_path):

        class Loader(DataLoader[Any], Base, **_KEYWORDS):
            pass

    assert taken == _KEYWORDS
    assert len(Loader(range(4))) == 4  # type: ignore[arg-type]


def _forwarding() -> list[Any]:
    """A function of torch that Stepscope replaces and that passes any keyword on."""
    optimizer, scaler = torch.optim.Optimizer, torch.amp.GradScaler
    return [
        vars(nn.Module)["__call__"],
        vars(nn.Module)["zero_grad"],
        vars(optimizer)["__init__"],
        scaler.step,
    ]


def test_stand_ins_that_pass_keywords_on_take_none_of_their_own(tmp_path: Path) -> None:
    originals = _forwarding()
    with attached(tmp_path):
        stand_ins = _forwarding()
    for stand_in, original in zip(stand_ins, originals, strict=True):
        own = inspect.signature(stand_in, follow_wrapped=False).parameters.values()
        names = {one.name for one in own if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD}
        assert stand_in is not original
        assert names <= set(inspect.signature(original).parameters)
