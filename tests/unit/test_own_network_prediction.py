"""The memory of networks as people write them, before they run."""

from pathlib import Path

import pytest

from harness.predict.answer import Prediction, Target
from harness.predict.predicting import predict
from harness.predict.question import Question
from harness.predict.tracing import trace
from harness.records.memory import MemoryCategory
from harness.records.run import DeviceKind
from harness.settings.resolve import resolve

_TARGET = Target(DeviceKind.CPU, "the CPU")
_BEGIN = """
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

dataset = TensorDataset(torch.randn(64, 30, 16), torch.randint(1, 20, (64, 7)))
longer = TensorDataset(torch.randn(40_064, 1, 16), torch.ones(40_064, 7, dtype=torch.int64))
tokens = TensorDataset(torch.randint(0, 500, (64, 8)), torch.randint(0, 2, (64,)))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 20)

    def forward(self, inputs, targets):
        outputs = self.layer(inputs)
        return self.loss(outputs.mean() if outputs.shape[1] == 1 else outputs, targets)
"""


def _question(folder: Path, code: str, data: str = "dataset") -> Question:
    file = folder / "network.py"
    file.write_text(_BEGIN + code)
    values = {"model": f"{file}:build", "data": f"{file}:{data}", "batch_size": 8, "optimizer": "sgd"}
    return Question.of(resolve(values), _TARGET)


def _predicted(folder: Path, code: str, data: str = "dataset") -> Prediction:
    answer = predict(_question(folder, code, data), None)
    assert isinstance(answer, Prediction), answer
    return answer


def _loss(expression: str, before: str = "") -> str:
    return f"""
class Own(Network):
    def loss(self, outputs, targets):
        {before}
        return {expression}


def build(settings):
    return Own()
"""


def test_the_order_of_the_samples_of_an_own_dataset_is_counted(tmp_path: Path) -> None:
    code = _loss("outputs.sum()")
    some, more = (_predicted(_new(tmp_path, data), code, data) for data in ("dataset", "longer"))
    added = [
        after.size_bytes - before.size_bytes
        for before, after in zip(some.parts, more.parts, strict=True)
        if after.category is MemoryCategory.INPUTS
    ]
    assert added[0] == pytest.approx(8 * 40_000, rel=0.1)


@pytest.mark.parametrize("name", ["gelu.default", "gelu_backward.default"])
def test_a_gelu_is_among_the_kernels_that_are_measured(tmp_path: Path, name: str) -> None:
    kernels = trace(_question(tmp_path, _loss("functional.gelu(outputs).mean()"))).kernels
    assert name in {f"{run.call.operator}.{run.call.overload}" for run in kernels}


def _new(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name
