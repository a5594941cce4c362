"""A decoder-only transformer over bytes, up to the size of GPT-2 small (12 layers, 768 wide, 12 heads)."""

from collections.abc import Mapping

from torch import Tensor, nn

from harness.models.attention import TokenEmbedding, TransformerBlock, initialize
from harness.models.base import LossModel, mean_cross_entropy
from harness.records.data import DataShape


class Transformer(LossModel):
    """Causal blocks over embedded tokens; the head and the embedding share their weights."""

    def __init__(self, vocabulary: int, context: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embedding = TokenEmbedding(vocabulary, context, width)
        self.blocks = nn.ModuleList(TransformerBlock(width, heads, causal=True) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.tokens.weight
        initialize(self, layers)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean loss of predicting `targets` (batch, sequence) from `inputs` (batch, sequence)."""
        hidden = self.embedding(inputs)
        for block in self.blocks:
            hidden = self.run_block(block, hidden)
        return mean_cross_entropy(self.head(self.norm(hidden)), targets)


def build(params: Mapping[str, int], shape: DataShape) -> Transformer:
    """A Transformer for `shape`; `params`: context (positions), width, heads, layers."""
    return Transformer(
        shape.vocabulary, params["context"], params["width"], params["heads"], params["layers"]
    )
