"""Test how many graphs torch.compile may keep for a run, and what is said when it keeps no more."""

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo import config, testing

from harness.settings.spec import change
from harness.train.compiling import limit_name
from harness.watch.compiler import watching_compiler
from tests.train_factories import a_step, a_workload

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own, on the way to its compiler
]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    with config.patch({limit_name("recompile_limit"): 2}):  # A lower one than torch's 8 is reached sooner.
        yield
    torch._dynamo.reset()


def test_each_combination_of_settings_has_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = testing.CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    message: list[str] = []
    graphs = []
    with watching_compiler(message.append):
        workload = a_workload(compile=True)
        names = ("amp", "activation_checkpointing")
        for values in itertools.product(("off", "bf16"), (False, True)):
            changes = dict(zip(names, values, strict=True))
            workload.reconfigure(change(workload.settings, changes))
            a_step(workload)
            graphs.append(counter.frame_count)
    assert graphs == sorted(set(graphs)), "every combination is compiled"
    assert message == []


def test_a_function_that_is_compiled_no_more_is_named() -> None:
    def forward(x: Tensor, way: str) -> Tensor:
        return x + len(way)

    function: Any = torch.compile(forward, backend="eager")
    message: list[str] = []
    with config.patch({limit_name("recompile_limit"): 2}), watching_compiler(message.append):
        for way in "abcde":
            function(torch.ones(2), way)
    (text,) = message
    assert text.startswith("forward (tests/unit/test_compiling.py:")
    assert "runs uncompiled from now on" in text
    with config.patch({limit_name("recompile_limit"): 2}):
        function(torch.ones(2), "f")
    assert len(message) == 1
