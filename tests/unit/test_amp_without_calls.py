"""Mixed precision of scripts in which no call of a model is seen: it has no place to take effect."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from harness.records.run import AckRow, CommandState
from tests.session_factories import Attached, a_session

_INPUTS = torch.linspace(-1, 1, 32).reshape(8, 4)


def answered(home: Path, step: Callable[[], None]) -> tuple[Attached, AckRow]:
    """Train, and request bf16 meanwhile."""
    with a_session(home) as attached:
        for _ in range(3):
            step()
        request = attached.ask(amp="bf16")
        for _ in range(3):
            step()
    return attached, attached.answer(request)


def of_an_ensemble() -> Callable[[], None]:
    parameters, buffers = stack_module_state([nn.Linear(4, 1) for _ in range(3)])
    optimizer = torch.optim.SGD(list(parameters.values()), lr=0.1)
    base = deepcopy(nn.Linear(4, 1)).to("meta")

    def output(own: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        result: Tensor = functional_call(base, (own, buffers), (_INPUTS,))
        return result

    def step() -> None:
        optimizer.zero_grad()
        vmap(output)(parameters, buffers).square().mean().backward()
        optimizer.step()

    return step


def of_a_compiled_function() -> Callable[[], None]:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile(backend="eager")
    def loss(inputs: Tensor) -> Tensor:
        return model(inputs).square().mean()  # type: ignore[no-any-return]  # of a module

    def step() -> None:
        optimizer.zero_grad()
        loss(_INPUTS).backward()
        optimizer.step()

    return step


@pytest.fixture(autouse=True)
def compiles_anew() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("script", [of_an_ensemble, of_a_compiled_function])
def test_a_mode_without_a_place_is_rejected_with_the_reason(
    tmp_path: Path, script: Callable[[], Callable[[], None]]
) -> None:
    attached, answer = answered(tmp_path, script())
    assert answer.state == CommandState.REJECTED
    assert "no call of a model" in answer.message
    assert {values["amp"] for values in attached.settings()} == {"off"}


def test_a_model_that_is_trained_in_evaluation_mode_follows_the_switch(tmp_path: Path) -> None:
    model = nn.Linear(4, 1).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(_INPUTS).square().mean().backward()
        optimizer.step()

    _, answer = answered(tmp_path, step)
    assert answer.state == CommandState.APPLIED


def test_a_region_of_the_run_is_a_place(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dtypes: list[torch.dtype] = []

    def step() -> None:
        with attached.session.remarks.autocast():
            output = nn.functional.linear(_INPUTS, model.weight)
        dtypes.append(output.dtype)
        optimizer.zero_grad()
        output.float().square().mean().backward()
        optimizer.step()

    with a_session(tmp_path) as attached:
        for _ in range(3):
            step()
        request = attached.ask(amp="bf16")
        for _ in range(3):
            step()
    assert attached.answer(request).state == CommandState.APPLIED
    assert dtypes == [torch.float32] * 4 + [torch.bfloat16] * 2


def answered_early(home: Path, step: Callable[[], None]) -> tuple[Attached, AckRow]:
    """Request bf16 before the training begins, and train."""
    with a_session(home) as attached:
        request = attached.ask(amp="bf16")
        for _ in range(4):
            step()
    return attached, attached.answer(request)


def test_a_request_before_the_first_call_of_a_model_is_put_into_effect(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    dtypes: list[torch.dtype] = []
    model.register_forward_hook(lambda *call: dtypes.append(call[2].dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(_INPUTS).square().mean().backward()
        optimizer.step()

    attached, answer = answered_early(tmp_path, step)
    assert answer.state == CommandState.APPLIED
    assert dtypes == [torch.bfloat16] * 4
    assert attached.settings()[-1]["amp"] == "bf16"


@pytest.mark.parametrize("script", [of_an_ensemble, of_a_compiled_function])
def test_a_mode_is_switched_off_where_the_first_step_calls_no_model(
    tmp_path: Path, script: Callable[[], Callable[[], None]]
) -> None:
    attached, _ = answered_early(tmp_path, script())
    assert attached.settings()[-1]["amp"] == "off"
    [event] = [event for event in attached.events() if event.message.startswith("No call of a model")]
    assert event.step == 2
