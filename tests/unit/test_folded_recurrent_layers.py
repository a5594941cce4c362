"""Long sequences of recurrent layers on the CPU, traced as several short ones."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from harness.predict import folding
from harness.predict.folding import Untraced, cut_of, fold_recurrent
from harness.predict.question import Question
from harness.predict.reading import summarize
from harness.predict.tracing import Trace, trace
from harness.records.run import DeviceKind
from harness.settings.resolve import resolve

BATCH, FEATURES, UNITS = 3, 5, 6
OPTIONS: list[dict[str, Any]] = [
    {},
    {"batch_first": True},
    {"num_layers": 2, "bidirectional": True},
    {"num_layers": 3, "bias": False, "batch_first": True},
]


@given(steps=st.integers(1, 20_000))
def test_the_parts_hold_the_whole_sequence_and_hardly_more(steps: int) -> None:
    parts, length = cut_of(steps)
    assert length <= 64
    assert steps <= parts * length <= 1.02 * steps
    assert parts == 1 or length >= 24


@pytest.mark.parametrize("steps", [128, 131])
@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("cell", ["RNN", "GRU"])
def test_a_layer_returns_results_of_the_same_shape_and_takes_gradients(
    cell: str, options: dict[str, Any], is_transposed: bool, steps: int
) -> None:
    layer = getattr(nn, cell)(FEATURES, UNITS, **options)
    size = (BATCH, steps, FEATURES) if layer.batch_first else (steps, BATCH, FEATURES)
    inputs = torch.randn(size)
    if is_transposed:  # The same values as a view of another layout.
        inputs = inputs.transpose(0, 1).contiguous().transpose(0, 1)
    inputs.requires_grad_()
    real = [result.shape for result in layer(inputs)]
    untraced: list[Untraced] = []
    fold_recurrent(layer, lambda: 0, untraced.append)
    for number, shape in enumerate(real):
        layer.zero_grad()
        inputs.grad = None
        result = layer(inputs)[number]
        assert result.shape == shape
        result.sum().backward()
        assert all(weight.grad is not None for weight in layer.parameters())
        gradient: Tensor | None = inputs.grad
        assert gradient is not None
        assert gradient.shape == inputs.shape
    # As many nodes per time step as there are in the traced part, at least four of each layer and direction.
    layers = layer.num_layers * (2 if layer.bidirectional else 1)
    assert untraced == untraced[:1] * 2
    assert untraced[0].nodes >= 4 * layers * (steps - cut_of(steps).length)


def test_short_and_packed_sequences_and_lstms_remain_as_they_are() -> None:
    untraced: list[Untraced] = []
    for layer, inputs in (
        (nn.GRU(FEATURES, UNITS), torch.randn(64, BATCH, FEATURES)),
        (nn.LSTM(FEATURES, UNITS), torch.randn(300, BATCH, FEATURES)),
        (nn.GRU(FEATURES, UNITS), nn.utils.rnn.pack_sequence([torch.randn(300, FEATURES)])),
    ):
        expected = layer(inputs)[0]
        fold_recurrent(layer, lambda: 0, untraced.append)
        torch.testing.assert_close(layer(inputs)[0], expected)
    assert not untraced


def traced(**values: Any) -> Trace:
    settings = resolve({"data": "synthetic", "batch_size": 4, **values})
    return trace(Question(settings, DeviceKind.CPU, None))


@pytest.mark.long
@pytest.mark.parametrize(("model", "accumulation"), [("rnn", 2), ("gru", 1)])
def test_a_folded_trace_has_the_peak_of_the_whole_one(
    model: str, accumulation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"model": model, "sequence_length": 100, "grad_accumulation": accumulation}
    folded = traced(**values)
    monkeypatch.setattr(folding, "_LONGEST", 1_000)
    whole = traced(**values)
    assert len(folded.births) < 0.7 * len(whole.births)
    peaks = [summarize(each, DeviceKind.CPU).peaks for each in (folded, whole)]
    for phase in ("forward", "backward"):
        assert sum(peaks[0][phase]) == pytest.approx(sum(peaks[1][phase]), rel=0.05)


def test_a_trace_of_a_long_sequence_has_no_more_operators_than_one_of_a_short_one() -> None:
    short, long = (len(traced(model="rnn", sequence_length=length).kernels) for length in (64, 64 * 30))
    assert long <= 1.02 * short


def test_the_graph_grows_during_the_forward_pass() -> None:
    trace_of = traced(model="rnn", sequence_length=16)
    (at,) = [number for number, phase in enumerate(trace_of.phases) if phase.name == "forward"][-1:]
    begin, end = trace_of.phases[at].event, trace_of.phases[at + 1].event
    grown = [
        event - begin
        for event in range(begin, end)
        if (number := trace_of.events[event]) in trace_of.scratch and trace_of.births[number].size_bytes
    ]
    assert len(grown) == 16
    assert grown[0] < (end - begin) / 8
    assert grown[-1] > (end - begin) * 7 / 8
