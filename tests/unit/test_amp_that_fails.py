"""Models that cannot run under the mixed precision that a person has switched on."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from harness.attach import autocast
from harness.records.run import AmpMode, CommandState
from tests.session_factories import Attached, a_session

_STEPS, _AT = 12, 4
_SENTENCE = (
    "The model failed under mixed precision, and was called again without "
    "(Got unsupported ScalarType BFloat16): Mixed precision (AMP) bf16 → off."
)


class Net(nn.Module):
    """Calls `use` with what its first layer returns."""

    def __init__(self, use: Callable[[Tensor], object]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 1)
        self.use = use

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.body(inputs)
        self.use(hidden)
        output: Tensor = self.head(hidden)
        return output


def trained(net: nn.Module, before: Callable[[int], None] = lambda _step: None) -> list[float]:
    """The losses of a training; `before` is called before each step."""
    optimizer, losses = torch.optim.SGD(net.parameters(), lr=0.1), []
    for step in range(1, _STEPS + 1):
        before(step)
        loss = net(torch.linspace(-1, 1, 32).reshape(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def asking(attached: Attached, requests: list[str]) -> Callable[[int], None]:
    def before(step: int) -> None:
        if step == _AT:
            requests.append(attached.ask(amp="bf16"))

    return before


def test_a_call_that_fails_is_repeated_without_and_the_training_goes_on(tmp_path: Path) -> None:
    bare = trained(Net(lambda hidden: hidden.detach().numpy()))
    requests: list[str] = []
    with a_session(tmp_path) as attached:
        losses = trained(Net(lambda hidden: hidden.detach().numpy()), asking(attached, requests))
    assert losses == bare
    assert attached.answer(requests[0]).state == CommandState.APPLIED
    assert _SENTENCE in [event.message for event in attached.events()]
    assert attached.settings()[-1]["amp"] == AmpMode.OFF


def test_an_error_of_the_script_itself_is_the_scripts_and_the_mode_stays(tmp_path: Path) -> None:
    def use(hidden: Tensor) -> None:
        if hidden.dtype == torch.bfloat16:
            failures.append(1)
        if failures:
            raise ValueError("a mistake")

    failures: list[int] = []
    with a_session(tmp_path) as attached, pytest.raises(ValueError, match="a mistake"):
        trained(Net(use), asking(attached, []))
    assert attached.settings()[-1]["amp"] == AmpMode.BF16


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory."), KeyError("left")])
def test_other_exceptions_are_raised_at_once(tmp_path: Path, error: Exception) -> None:
    calls: list[int] = []

    def use(hidden: Tensor) -> None:
        if hidden.dtype == torch.bfloat16:
            calls.append(1)
            raise error

    with a_session(tmp_path) as attached, pytest.raises(type(error)):
        trained(Net(use), asking(attached, []))
    assert calls == [1]


def test_of_several_processes_none_repeats_a_call_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autocast, "is_one_of_several", lambda: True)
    with a_session(tmp_path) as attached, pytest.raises(TypeError, match="BFloat16"):
        trained(Net(lambda hidden: hidden.detach().numpy()), asking(attached, []))
