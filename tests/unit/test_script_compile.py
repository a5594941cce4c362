"""A script whose model is compiled: as many graphs as without a watch."""

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import convert_frame
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
    register_optimizer_step_pre_hook,
)

import harness
from stepscope import watch
from tests.api_factories import scalar
from tests.session_factories import a_session

STEPS = 4
# With torch 2.6, following the models of a script compiles one of them once more.
MOST_GRAPHS = 1 if torch.torch_version.TorchVersion(torch.__version__) >= "2.13" else 2


class Block(nn.Module):
    """A part of the model, of a class of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.relu(self.linear(inputs))


class Net(Block):
    """A model with parts of its own class, and of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(Block(), Block())

    def forward(self, inputs: Tensor) -> Tensor:
        body: Tensor = self.body(super().forward(inputs))
        return body


def compiled_in_place(net: Net, options: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    net.compile(**options)
    return net


def compiled_as_a_module(net: Net, options: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    compiled: Callable[[Tensor], Tensor] = torch.compile(net, **options)
    return compiled


def compiled_in_a_function(net: Net, options: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    def forward(inputs: Tensor) -> Tensor:
        output: Tensor = net(inputs)
        return output

    compiled: Callable[[Tensor], Tensor] = torch.compile(forward, **options)
    return compiled


def compiled_code(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files and names of all code that is compiled from now on."""
    compiled: list[str] = []

    def compiles(code: CodeType, *arguments: Any, **options: Any) -> Any:
        compiled.append(f"{code.co_filename} {code.co_name}")
        return compile_code(code, *arguments, **options)

    compile_code: Any = convert_frame._compile
    monkeypatch.setattr(convert_frame, "_compile", compiles)
    return compiled


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [compiled_in_place, compiled_as_a_module, compiled_in_a_function])
def test_a_compiled_model_is_one_graph_and_compiled_once(
    tmp_path: Path, compiled: Callable[[Net, dict[str, Any]], Callable[[Tensor], Tensor]]
) -> None:
    losses = []
    for around in (nullcontext(), a_session(tmp_path)):
        torch.compiler.reset()
        torch.manual_seed(0)
        graphs: list[object] = []

        def backend(graph: nn.Module, _inputs: object, graphs: Any = graphs) -> Callable[..., Any]:
            graphs.append(graph)
            return graph.forward

        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with around:
            model = compiled(net, {"backend": backend, "fullgraph": True})
            for _ in range(STEPS):
                loss = model(torch.ones(2, 4)).sum()
                losses.append(loss.item())
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        assert 1 <= len(graphs) <= (1 if isinstance(around, nullcontext) else MOST_GRAPHS)
    assert losses[:STEPS] == losses[STEPS:]


@pytest.mark.filterwarnings("ignore::")  # Of torch's compiler, as without a watch.
@pytest.mark.slow
@pytest.mark.parametrize("is_early", [True, False], ids=["before the watch", "under watch"])
@pytest.mark.parametrize(
    "computes",
    [pytest.param(True, id="with gradients", marks=pytest.mark.long), pytest.param(False, id="update only")],
)
def test_a_compiled_update_compiles_nothing_of_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computes: bool, is_early: bool
) -> None:
    outcomes, compiled = [], compiled_code(monkeypatch)
    for around in (nullcontext(), a_session(tmp_path)):
        torch.compiler.reset()
        torch.manual_seed(0)
        net = Net()
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1)

        def step(net: Net = net, optimizer: torch.optim.Optimizer = optimizer) -> Tensor:
            loss: Tensor = net(torch.ones(2, 4)).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        take: Callable[[], Tensor] = step
        with ExitStack() as stack:
            if not is_early:
                stack.enter_context(around)
            if computes:
                take = torch.compile(step, backend="eager")
            else:
                optimizer.step = torch.compile(optimizer.step, backend="eager")  # type: ignore[method-assign]
            if is_early:
                stack.enter_context(around)
            losses = [take().item() for _ in range(12)]
        weights = [weight.flatten().tolist() for weight in net.parameters()]
        outcomes.append((losses, weights))
    assert outcomes[0] == outcomes[1]
    assert compiled
    own = [one for one in compiled if one.startswith(str(Path(harness.__file__).parent))]
    # Traced, and nothing of it is in a graph.
    assert not [one for one in own if not one.endswith("hooks.py call")]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::")  # Of torch's compiler, as it leaves a call out of the graph.
def test_what_a_compiled_function_logs_compiles_nothing_of_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = compiled_code(monkeypatch)
    torch.compiler.reset()
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with watch(net, optimizer, home=tmp_path) as run:

        def forward(inputs: Tensor) -> Tensor:
            output: Tensor = net(inputs).sum()
            run.log(output=output.detach())
            run.event("called")
            return output

        take = torch.compile(forward, backend="eager")
        for _ in range(STEPS):
            take(torch.ones(2, 4)).backward()
            optimizer.step()
    assert compiled
    assert not [one for one in compiled if one.startswith(str(Path(harness.__file__).parent))]
    # In compiled code no call of the model shows that the next step has begun.
    assert [step for step, _ in scalar(tmp_path, "output")] == list(range(1, STEPS))


@pytest.mark.slow
def test_a_phase_within_a_compiled_function_is_measured_without_a_warning(tmp_path: Path) -> None:
    torch.compiler.reset()
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with watch(net, optimizer, home=tmp_path) as run:

        def forward(inputs: Tensor) -> Tensor:
            with run.phase("forward"):
                output: Tensor = net(inputs).sum()
            return output

        take = torch.compile(forward, backend="eager")
        for _ in range(STEPS):
            take(torch.ones(2, 4)).backward()
            optimizer.step()
    # In compiled code no call of the model shows that the next step has begun.
    assert [step for step, _ in scalar(tmp_path, "phase/forward")] == list(range(1, STEPS))


@pytest.mark.filterwarnings("ignore::")  # Of torch's compiler, as without a watch.
def test_a_function_that_is_compiled_within_an_update_is_not_in_its_way(tmp_path: Path) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    compiled: list[Callable[..., Any]] = []

    def compile_once(*_arguments: object) -> None:
        if not compiled:
            compiled.append(torch.compile(torch.relu, backend="eager"))

    with a_session(tmp_path) as attached:
        with register_optimizer_step_pre_hook(compile_once):
            for _ in range(STEPS):
                net(torch.ones(2, 4)).sum().backward()
                optimizer.step()
        assert attached.guard.is_on
    assert compiled
    with attached.log() as log:
        assert [row.step for row in log.steps(1, 100)] == list(range(1, STEPS + 1))


@pytest.mark.filterwarnings("ignore::")  # Of torch's compiler, as without a watch.
def test_the_compile_of_a_watch_that_has_ended_changes_nothing(tmp_path: Path) -> None:
    own, backward = torch.compile, torch.autograd.backward
    hooks = dict(optimizer_hooks())
    with a_session(tmp_path):
        kept = torch.compile
        assert kept is not own
    kept(torch.relu, backend="eager")
    assert (torch.compile, torch.autograd.backward) == (own, backward)
    assert dict(optimizer_hooks()) == hooks


def optimizer_hooks() -> dict[int, object]:
    return {**_global_optimizer_pre_hooks, **_global_optimizer_post_hooks}
