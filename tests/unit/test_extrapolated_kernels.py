"""Kernels too large to be measured are extrapolated from those of smaller batches, of one step each if all
steps run the same ones."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.models.base import LossModel
from harness.models.building import build_model
from harness.predict import footprints, predicting, tracing
from harness.predict.answer import Prediction, Target
from harness.predict.calls import Call
from harness.predict.kernels import Footprint
from harness.predict.question import Question
from harness.predict.scratch import KernelRun
from harness.predict.tracing import STEPS, Trace, trace, trace_kernels
from harness.records.memory import MemoryCategory
from harness.records.run import DeviceKind
from harness.settings.resolve import resolve

CPU = Target(DeviceKind.CPU, "the CPU")


class Meter:
    """Takes a hundred times the memory of the arguments."""

    def measure(self, calls: Sequence[Call]) -> list[Footprint | None]:
        return [Footprint(0, 100 * call.input_bytes, ()) for call in calls]


class _Cached(LossModel):
    """Computes a table of positions in its first forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.table: Tensor | None = None

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.ones(3, 8) @ torch.ones(8, 8)
        outputs: Tensor = self.layer(inputs.flatten(1)[:, :8]) + self.table.sum()
        return outputs.square().mean() + 0 * targets.sum()


def question(**values: Any) -> Question:
    return Question.of(resolve({"model": "mlp", "data": "synthetic", **values}), CPU)


def calls(runs: Sequence[KernelRun]) -> list[Call]:
    return [run.call for run in runs]


@pytest.mark.parametrize(
    "values",
    [
        {"model": "mlp", "batch_size": 3},
        {"model": "lstm", "batch_size": 3, "amp": "bf16", "grad_accumulation": 2},
        {"model": "cnn", "batch_size": 2, "activation_checkpointing": True},
    ],
)
def test_the_kernels_of_one_step_are_those_of_each_in_a_trace(values: dict[str, Any]) -> None:
    one = question(**values)
    # The first trace of a process copies a gradient that an operator returns for two weights. From then on
    # torch's cache returns two tensors.
    trace(one)
    assert calls(trace_kernels(one)) * STEPS == calls(trace(one).kernels)


def libraries_bytes(one: Question) -> int:
    answer = predicting.predict(one, 0, Meter())
    assert isinstance(answer, Prediction)
    return next(part.size_bytes for part in answer.parts if part.category is MemoryCategory.LIBRARIES)


@pytest.mark.parametrize(
    ("build", "whole_traces"),
    [
        pytest.param(build_model, 1, id="equal steps"),
        pytest.param(lambda *_: _Cached(), 3, id="a longer first step"),
    ],
)
def test_what_grows_with_the_batch_is_extrapolated_to_what_it_is(
    build: Any, whole_traces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "build_model", build)
    measured = libraries_bytes(question(batch_size=64))
    smaller = trace_kernels(question(batch_size=20))
    most_bytes = max(run.call.input_bytes + run.result_bytes for run in smaller)
    monkeypatch.setattr(footprints, "MOST_CALL_BYTES", most_bytes)
    traces: list[Question] = []

    def noting(one: Question) -> Trace:
        traces.append(one)
        return trace(one)

    monkeypatch.setattr(predicting, "trace", noting)
    assert libraries_bytes(question(batch_size=64)) == measured > 0
    assert len(traces) == whole_traces
