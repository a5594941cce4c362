"""Language models over bytes made of recurrent layers: plain RNN, LSTM and GRU."""

from collections.abc import Mapping

from torch import Tensor, nn

from harness.models.base import LossModel, mean_cross_entropy
from harness.records.data import DataShape

Cell = type[nn.RNN] | type[nn.LSTM] | type[nn.GRU]


class RecurrentLanguageModel(LossModel):
    """An embedding, `layers` recurrent layers of `width` units, and a linear head over the vocabulary.

    Each layer is a separate module, so that it can be checkpointed.
    """

    def __init__(self, cell: Cell, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(cell(width, width, batch_first=True) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean loss of predicting `targets` (batch, sequence) from `inputs` (batch, sequence)."""
        hidden = self.embedding(inputs)
        for block in self.blocks:
            hidden = self.run_block(lambda states, layer=block: layer(states)[0], hidden)
        return mean_cross_entropy(self.head(hidden), targets)


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
