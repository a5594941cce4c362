"""Models that cannot run under the mixed precision that a person has switched on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

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


class Scaled(torch.autograd.Function):
    """Multiplies, in the backward pass by the matrix itself, and there only those of its own data type."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        return hidden @ weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        hidden, weight = ctx.saved_tensors
        return gradient @ weight.T, hidden.T @ gradient


class OwnBackward(nn.Module):
    """A model with a layer that has a backward pass of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.weight = nn.Linear(4, 4), nn.Parameter(torch.ones(4, 4))

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = Scaled.apply(self.body(inputs), self.weight)  # type: ignore[no-untyped-call]
        return output


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_backward_pass_that_fails_leaves_out_the_steps_gradients(
    tmp_path: Path, micro_batches: int
) -> None:
    def train(before: Callable[[int], None], skipped: int | None = None) -> list[float]:
        net, losses = OwnBackward(), []
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(1, _STEPS + 1):
            before(step)
            optimizer.zero_grad()
            for part in range(micro_batches):
                loss = net(torch.linspace(-1, 1 + part, 32).reshape(8, 4)).square().mean()
                loss.backward()
                # What remains of such a step is the backward passes without mixed precision.
                if step == skipped and not part:
                    optimizer.zero_grad()
                losses.append(loss.item())
            optimizer.step()
        return losses

    requests: list[str] = []
    with a_session(tmp_path) as attached:
        losses = train(asking(attached, requests))
    changed = _AT * micro_batches
    expected = train(lambda _step: None, _AT + 1)
    assert losses[:changed] == expected[:changed]
    assert losses[changed] == pytest.approx(expected[changed], rel=0.1)
    assert losses[changed + 1 :] == expected[changed + 1 :]
    assert attached.answer(requests[0]).state == CommandState.APPLIED
    (message,) = [one.message for one in attached.events() if "failed under" in one.message]
    assert "The backward pass failed under mixed precision, and gave no gradients" in message
    assert attached.settings()[-1]["amp"] == AmpMode.OFF


def test_two_backward_passes_of_a_step_may_fail_and_the_next_step_has_its_gradients(tmp_path: Path) -> None:
    net, gradients = OwnBackward(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with a_session(tmp_path) as attached:
        for step in range(1, _STEPS + 1):
            asking(attached, [])(step)
            optimizer.zero_grad()
            output = net(torch.linspace(-1, 1, 32).reshape(8, 4))
            output.square().mean().backward(retain_graph=True)
            output.mean().backward()
            gradients.append(bool(net.weight.grad.abs().sum()))  # type: ignore[union-attr]  # it has one
            optimizer.step()
    assert gradients == [True] * _AT + [False] + [True] * (_STEPS - _AT - 1)
    assert attached.settings()[-1]["amp"] == AmpMode.OFF


def test_an_error_of_a_kind_of_the_scripts_own_is_raised(tmp_path: Path) -> None:
    class SkippedError(RuntimeError):
        """The script's way to leave a backward pass."""

    def skip(gradient: Tensor) -> None:
        del gradient
        if steps[-1] == _AT + 1:
            raise SkippedError("skip this batch")

    net, steps, skipped = Net(lambda _hidden: None), [], []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with a_session(tmp_path) as attached:
        net.head.weight.register_hook(skip)
        for step in range(1, _STEPS + 1):
            steps.append(step)
            asking(attached, [])(step)
            optimizer.zero_grad()
            try:
                net(torch.ones(8, 4)).square().mean().backward()
            except SkippedError:
                skipped.append(step)
                continue
            optimizer.step()
    assert skipped == [_AT + 1]
    assert attached.settings()[-1]["amp"] == AmpMode.BF16


def test_a_later_failure_of_the_backward_pass_is_the_scripts(tmp_path: Path) -> None:
    def before(step: int) -> None:
        if step == _AT:
            attached.ask(amp="bf16")
        if step == _STEPS:
            net.weight.register_hook(lambda _gradient: torch.ones(2).view(3))

    net = OwnBackward()
    net.forward = lambda inputs: net.body(inputs) @ net.weight  # type: ignore[method-assign]
    with a_session(tmp_path) as attached, pytest.raises(RuntimeError, match="shape"):
        trained(net, before)
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
