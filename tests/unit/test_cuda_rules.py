"""Traces of a CUDA run follow CUDA's rules, and nothing else does."""

import pytest
import torch
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention

from harness.models import recurrent
from harness.predict.answer import Prediction, Target
from harness.predict.cuda_rules import cuda_rules
from harness.predict.predicting import predict
from harness.predict.question import Question
from harness.records.run import DeviceKind
from harness.settings.resolve import resolve

CARD = Target(DeviceKind.CUDA, "NVIDIA H100 80GB HBM3", 85_017_493_504, (9, 0))


def dtypes() -> tuple[torch.dtype, torch.dtype, torch.dtype]:
    """Of a power, a loss and a product under autocast to bfloat16."""
    values = torch.ones(2, 2, dtype=torch.bfloat16, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = functional.cross_entropy(values, torch.tensor([0, 1]))
        return (values**3).dtype, loss.dtype, (values @ values).dtype


def test_autocast_computes_in_float32_what_it_does_on_cuda() -> None:
    before = dtypes()
    with cuda_rules(autocast=True):
        assert dtypes() == (torch.float32, torch.float32, torch.bfloat16)
    assert dtypes() == before
    with cuda_rules(autocast=False):
        assert dtypes() == before


def test_gradients_come_back_in_the_dtype_of_the_values() -> None:
    values = torch.full((3,), 2.0, dtype=torch.bfloat16, requires_grad=True)
    with cuda_rules(autocast=True), torch.autocast("cpu", dtype=torch.bfloat16):
        (values**3).sum().backward()
    assert values.grad is not None
    assert values.grad.dtype is torch.bfloat16
    assert values.grad.tolist() == [12.0] * 3


@pytest.mark.parametrize("heads", [2, 4])
def test_attention_is_the_same_with_grouped_keys(heads: int) -> None:
    query = torch.randn(1, 4, 8, 16)
    keys, values = torch.randn(2, 1, heads, 8, 16)
    expected = scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=heads < 4)
    with cuda_rules(autocast=False):
        result = functional.scaled_dot_product_attention(
            query, keys, values, is_causal=True, enable_gqa=heads < 4
        )
    torch.testing.assert_close(result, expected)
    assert functional.scaled_dot_product_attention is scaled_dot_product_attention


def peak(**values: object) -> int:
    answer = predict(Question.of(resolve({"device": "cuda", "data": "synthetic", **values}), CARD), None)
    assert isinstance(answer, Prediction), answer
    return answer.peak_allocated_bytes


@pytest.mark.slow
@pytest.mark.parametrize("model", ["rnn", "lstm", "gru"])
def test_a_recurrent_model_with_checkpointing_is_predicted(model: str) -> None:
    plain = peak(model=model, preset="workstation", batch_size=32)
    assert peak(model=model, preset="workstation", batch_size=32, activation_checkpointing=True) < plain


@pytest.mark.slow
def test_an_lstm_in_mixed_precision_is_predicted_whatever_this_cpu_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = {"model": "lstm", "preset": "workstation", "batch_size": 32}
    peaks = []
    for has_kernels in (True, False):
        monkeypatch.setattr(recurrent, "has_bf16_lstm", lambda has_kernels=has_kernels: has_kernels)
        peaks.append(peak(**values, amp="bf16"))
    assert peaks[0] == peaks[1] < peak(**values)
