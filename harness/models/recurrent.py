"""Language models over bytes made of recurrent layers: plain RNN, LSTM and GRU."""

from collections.abc import Mapping
from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from harness.models.base import LossModel, mean_cross_entropy
from harness.records.data import DataShape

Cell = type[nn.RNN] | type[nn.LSTM] | type[nn.GRU]


@cache
def has_bf16_lstm() -> bool:
    """Return whether an LSTM runs under bfloat16 autocast on this CPU.

    oneDNN has kernels of it for AVX-512 and AMX only. Without one torch raises RuntimeError, where it would
    compute another layer in float32.
    """
    with _disable_current_modes(), torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        state, weight, bias = (torch.zeros(shape, device="cpu") for shape in ((1, 1, 1), (4, 1), (4,)))
        try:
            torch.lstm(state, (state, state), [weight, weight, bias, bias], True, 1, 0.0, False, False, False)
        except RuntimeError:
            return False
    return True


class RecurrentLanguageModel(LossModel):
    """An embedding, `layers` recurrent layers of `width` units, and a linear head over the vocabulary.

    Each layer is a separate module, so that it can be checkpointed. An LSTM on a CPU that does not run it in
    bfloat16 stays in float32 under autocast.

    Attributes:
        is_float32_on_cpu: whether it does; what computes on the CPU for a GPU turns it off.
    """

    def __init__(self, cell: Cell, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(cell(width, width, batch_first=True) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)
        self.is_float32_on_cpu = cell is nn.LSTM and not has_bf16_lstm()

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean loss of predicting `targets` (batch, sequence) from `inputs` (batch, sequence)."""
        hidden = self.embedding(inputs)
        for block in self.blocks:
            hidden = self.run_block(partial(self._run_layer, block), hidden)
        return mean_cross_entropy(self.head(hidden), targets)

    def _run_layer(self, layer: nn.Module, inputs: Tensor) -> Tensor:
        if self.is_float32_on_cpu and inputs.device.type == "cpu":
            with torch.autocast("cpu", enabled=False):
                outputs: Tensor = layer(inputs.float())[0]
        else:
            outputs = layer(inputs)[0]
        return outputs


def _build(cell: Cell, params: Mapping[str, int], shape: DataShape) -> RecurrentLanguageModel:
    return RecurrentLanguageModel(cell, shape.vocabulary, params["width"], params["layers"])


def build_rnn(params: Mapping[str, int], shape: DataShape) -> RecurrentLanguageModel:
    """Elman's network with tanh; `params`: width, layers."""
    return _build(nn.RNN, params, shape)


def build_lstm(params: Mapping[str, int], shape: DataShape) -> RecurrentLanguageModel:
    """An LSTM; `params`: width, layers."""
    return _build(nn.LSTM, params, shape)


def build_gru(params: Mapping[str, int], shape: DataShape) -> RecurrentLanguageModel:
    """A GRU; `params`: width, layers."""
    return _build(nn.GRU, params, shape)
