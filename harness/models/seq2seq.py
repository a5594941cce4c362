"""An encoder-decoder transformer that encodes the first half of a text and predicts the second."""

from collections.abc import Mapping

from torch import Tensor, nn

from harness.models.attention import TokenEmbedding, TransformerBlock, initialize
from harness.models.base import LossModel, mean_cross_entropy
from harness.records.data import DataShape


class Seq2Seq(LossModel):
    """A bidirectional encoder of the first half of the window, and a causal decoder with cross-attention.

    With a window of T tokens the decoder starts from the last token of the first half and predicts the T/2
    tokens of the second: the loss is the mean over those. Both share one embedding.
    """

    def __init__(self, vocabulary: int, context: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embedding = TokenEmbedding(vocabulary, context, width)
        self.encoder = nn.ModuleList(TransformerBlock(width, heads, causal=False) for _ in range(layers))
        self.encoder_norm = nn.LayerNorm(width)
        self.decoder = nn.ModuleList(
            TransformerBlock(width, heads, causal=True, crossed=True) for _ in range(layers)
        )
        self.decoder_norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.tokens.weight
        initialize(self, layers)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean loss on the second half; `inputs` and `targets` are (batch, sequence), sequence even."""
        half = inputs.shape[1] // 2
        memory = self.embedding(inputs[:, :half])
        for block in self.encoder:
            memory = self.run_block(block, memory)
        memory = self.encoder_norm(memory)
        hidden = self.embedding(inputs[:, half - 1 : -1])
        for block in self.decoder:
            hidden = self.run_block(block, hidden, memory)
        return mean_cross_entropy(self.head(self.decoder_norm(hidden)), targets[:, half - 1 : -1])


def build(params: Mapping[str, int], shape: DataShape) -> Seq2Seq:
    """A Seq2Seq for `shape`; `params`: context (positions per half), width, heads, layers (per side)."""
    return Seq2Seq(shape.vocabulary, params["context"], params["width"], params["heads"], params["layers"])
