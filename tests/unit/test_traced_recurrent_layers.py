"""Recurrent layers that are traced as one kernel of cuDNN: results as torch's own, in any arrangement."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from harness.predict import tracing
from harness.predict.answer import Prediction, Target
from harness.predict.predicting import predict
from harness.predict.question import Question
from harness.predict.recurrent import fuse_recurrent
from harness.records.run import DeviceKind
from harness.settings.resolve import resolve

STEPS, BATCH, FEATURES, UNITS = 4, 3, 5, 6
ARRANGEMENTS: list[dict[str, Any]] = [
    {},
    {"batch_first": True},
    {"bias": False},
    {"num_layers": 3},
    {"bidirectional": True},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
]
LAYERS = [
    *((cell, options) for cell in ("RNN", "LSTM", "GRU") for options in ARRANGEMENTS),
    ("LSTM", {"proj_size": 2, "num_layers": 2}),
]


def called(layer: nn.RNNBase, *, is_packed: bool) -> list[Tensor]:
    """The output and the final states."""
    inputs: Any = (
        torch.randn(BATCH, STEPS, FEATURES) if layer.batch_first else torch.randn(STEPS, BATCH, FEATURES)
    )
    if is_packed:
        inputs = pack_padded_sequence(inputs, torch.tensor([STEPS, 2, 1]), batch_first=layer.batch_first)
    output, final = layer(inputs)
    return [output.data if is_packed else output, *(final if isinstance(final, tuple) else (final,))]


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize(("cell", "options"), LAYERS)
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_a_layer_returns_what_it_does_and_takes_gradients_for_all_of_its_weights(
    cell: str, options: dict[str, Any], is_packed: bool
) -> None:
    layer = getattr(nn, cell)(FEATURES, UNITS, **options)
    real = called(layer, is_packed=is_packed)
    fuse_recurrent(layer)
    traced = called(layer, is_packed=is_packed)
    assert [result.shape for result in traced] == [result.shape for result in real]
    for number in range(len(traced)):  # Also where the final states alone are used, as of an encoder.
        layer.zero_grad()
        called(layer, is_packed=is_packed)[number].sum().backward()
        assert all(weight.grad is not None for weight in layer.parameters())


class _Recurrent(nn.Module):
    """A recurrent layer; the mean square of its output is the loss."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.layer = nn.GRU(8, 32, **options)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs.flatten(1)[:, :8].expand(100, -1, -1))[0]
        return outputs.square().mean() + 0 * targets.sum()


def predicted(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Prediction:
    monkeypatch.setattr(tracing, "build_model", lambda *_: _Recurrent(**options))
    card = Target(DeviceKind.CUDA, "a card", 80 << 30, (9, 0))
    answer = predict(Question.of(resolve({"model": "mlp", "batch_size": 64}), card), None)
    assert isinstance(answer, Prediction)
    return answer


def test_further_layers_and_directions_need_their_reserves_and_are_said_to_be_estimates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    single, double, both = (
        predicted(monkeypatch, **options) for options in ({}, {"num_layers": 2}, {"bidirectional": True})
    )
    output_bytes = 100 * 64 * 32 * 4
    grown = double.peak_allocated_bytes - single.peak_allocated_bytes
    assert grown == pytest.approx(7 * output_bytes, rel=0.1)  # A reserve, and the output in between.
    grown = both.peak_allocated_bytes - single.peak_allocated_bytes
    assert grown >= 7 * output_bytes  # A reserve, and half of the output.
    said = "recurrent layers follows measurements of single layers in one direction"
    assert [any(said in note for note in answer.notes) for answer in (single, double, both)] == [
        False,
        True,
        True,
    ]
    assert not any("convolution" in note for note in single.notes)
