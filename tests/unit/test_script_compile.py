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

import harness
from tests.session_factories import a_session

STEPS = 4


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

        def backend(graph: Callable[..., Any], _inputs: object, graphs: Any = graphs) -> Callable[..., Any]:
            graphs.append(graph)
            return graph

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
        assert len(graphs) == 1
    assert losses[:STEPS] == losses[STEPS:]


@pytest.mark.filterwarnings("ignore::")  # Of torch's compiler, as without a watch.
@pytest.mark.slow
@pytest.mark.parametrize("is_early", [True, False], ids=["before the watch", "under watch"])
@pytest.mark.parametrize("computes", [True, False], ids=["with gradients", "update only"])
def test_a_compiled_update_compiles_nothing_of_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computes: bool, is_early: bool
) -> None:
    outcomes, compiled = [], []

    def compiles(code: CodeType, *arguments: Any, **options: Any) -> Any:
        compiled.append(f"{code.co_filename} {code.co_name}")
        return compile_code(code, *arguments, **options)

    compile_code: Any = convert_frame._compile
    monkeypatch.setattr(convert_frame, "_compile", compiles)
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
