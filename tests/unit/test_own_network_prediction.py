"""The memory of networks as people write them, before they run."""

from pathlib import Path

import pytest

from harness.predict.answer import Impossible, Prediction, Target
from harness.predict.predicting import predict
from harness.predict.question import Question
from harness.predict.tracing import STEPS, trace
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


@pytest.mark.parametrize("change", ["double()", "to(torch.float64)", "to(dtype=torch.float64).train()"])
def test_weights_of_another_data_type_are_counted_in_it(tmp_path: Path, change: str) -> None:
    code = (
        "def build(settings): return nn.Sequential(nn.Embedding(500, 64), nn.Flatten(), nn.Linear(512, 2)){}"
    )
    plain, changed = (
        next(
            part.size_bytes
            for part in _predicted(folder, code.format(ending) + ", nn.CrossEntropyLoss()", "tokens").parts
            if part.category is MemoryCategory.WEIGHTS
        )
        for folder, ending in ((_new(tmp_path, "plain"), ""), (_new(tmp_path, "changed"), f".{change}"))
    )
    assert changed == pytest.approx(2 * plain, rel=0.02)


def test_the_order_of_the_samples_of_an_own_dataset_is_counted(tmp_path: Path) -> None:
    code = _loss("outputs.sum()")
    some, more = (_predicted(_new(tmp_path, data), code, data) for data in ("dataset", "longer"))
    added = [
        after.size_bytes - before.size_bytes
        for before, after in zip(some.parts, more.parts, strict=True)
        if after.category is MemoryCategory.INPUTS
    ]
    assert added[0] == pytest.approx(8 * 40_000, rel=0.1)


@pytest.mark.parametrize(
    "check",
    [
        "assert not torch.isnan(outputs).any()",
        "assert torch.isfinite(outputs).all()",
        "assert not (~torch.isfinite(outputs.sum())).item()",
        "assert torch.isfinite(outputs.sum())",
    ],
)
def test_a_network_that_checks_its_values_is_predicted_with_a_note(tmp_path: Path, check: str) -> None:
    checked = _predicted(_new(tmp_path, "checked"), _loss("outputs.mean()", check))
    unchecked = _predicted(_new(tmp_path, "unchecked"), _loss("outputs.mean()"))
    assert [note for note in checked.notes if note not in unchecked.notes] == [
        "The model decides by values that it computes; its checks of them were taken to pass."
    ]


def test_a_loss_of_torch_that_checks_its_arguments_is_predicted(tmp_path: Path) -> None:
    _predicted(tmp_path, _loss("functional.gaussian_nll_loss(outputs, outputs, outputs.exp())"))


def test_a_branch_that_depends_on_values_is_not_predicted(tmp_path: Path) -> None:
    code = _loss("outputs.mean()", "outputs = outputs.exp() if targets.sum() > 3 else outputs")
    answer = predict(_question(tmp_path, code), None)
    assert isinstance(answer, Impossible)
    assert "depend on the values" in answer.reason


def test_a_ctc_loss_keeps_the_table_of_targets_of_full_length(tmp_path: Path) -> None:
    lengths = "steps = torch.full((8,), 30); lengths = torch.full((8,), 7)"
    outputs = "outputs.log_softmax(-1).transpose(0, 1)"
    question = _question(tmp_path, _loss(f"functional.ctc_loss({outputs}, targets, steps, lengths)", lengths))
    assert 4 * 8 * 30 * (2 * 7 + 1) in [birth.size_bytes for birth in trace(question).births]


def test_sparse_gradients_take_the_memory_of_the_rows_in_the_batch(tmp_path: Path) -> None:
    code = (
        "def build(settings):\n"
        "    layers = nn.Embedding(500, 64, sparse=True), nn.Flatten(), nn.Linear(512, 2)\n"
        "    return nn.Sequential(*layers), nn.CrossEntropyLoss()\n"
    )
    answer = _predicted(tmp_path, code, "tokens")
    gradients = next(part for part in answer.parts if part.category is MemoryCategory.GRADIENTS)
    assert gradients.size_bytes < 4 * 500 * 64


@pytest.mark.parametrize("name", ["gelu.default", "gelu_backward.default"])
def test_a_gelu_is_among_the_kernels_that_are_measured(tmp_path: Path, name: str) -> None:
    kernels = trace(_question(tmp_path, _loss("functional.gelu(outputs).mean()"))).kernels
    assert name in {f"{run.call.operator}.{run.call.overload}" for run in kernels}


def test_the_gradient_of_a_maximum_is_written_into_zeros_and_no_copy(tmp_path: Path) -> None:
    births = trace(_question(tmp_path, _loss("outputs.max(dim=2).values.mean()"))).births
    size_bytes = 4 * 8 * 30 * 20
    assert [birth.size_bytes for birth in births].count(size_bytes) == STEPS * len(("outputs", "zeros"))


@pytest.mark.parametrize("place", ["build", "the loss"])
def test_an_error_of_a_persons_code_is_named_with_its_kind_and_whole_message(
    tmp_path: Path, place: str
) -> None:
    failure = 'raise ValueError("no such\\nbackbone")'
    code = f"def build(settings): {failure}" if place == "build" else _loss("outputs", failure)
    answer = predict(_question(tmp_path, code), None)
    assert isinstance(answer, Impossible)
    assert answer.reason == (
        "The memory of network.py:build cannot be predicted: without data, its code raises ValueError: no "
        "such backbone"
    )


def test_of_a_lazy_module_it_is_said_that_its_size_is_needed(tmp_path: Path) -> None:
    code = """
def build(settings):
    model = nn.Sequential(nn.LazyLinear(20))
    model(torch.zeros(2, 16))
    return model, nn.CrossEntropyLoss()
"""
    assert predict(_question(tmp_path, code), None) == Impossible(
        "The memory of network.py:build cannot be predicted: torch has no lazy modules without data; give "
        "the sizes, as in nn.Linear(4, 16)."
    )


@pytest.mark.parametrize("channels_last", [False, True])
def test_frozen_weights_have_no_gradient_in_any_layout(tmp_path: Path, channels_last: bool) -> None:
    code = (
        "images = TensorDataset(torch.randn(64, 3, 8, 8), torch.randint(0, 2, (64,)))\n"
        "def build(settings):\n"
        "    frozen = nn.Conv2d(3, 300, 3).requires_grad_(False)\n"
        "    layers = frozen, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(300, 2)\n"
        "    return nn.Sequential(*layers), nn.CrossEntropyLoss()\n"
    )
    question = _question(tmp_path, code, "images")
    settings = question.settings.model_copy(update={"channels_last": channels_last})
    answer = predict(question._replace(settings=settings), None)
    assert isinstance(answer, Prediction)
    gradients = next(part for part in answer.parts if part.category is MemoryCategory.GRADIENTS)
    assert gradients.size_bytes < 4 * 300 * 3 * 9


def _new(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name
