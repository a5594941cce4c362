"""The modules of transformers: attention, feed-forward, embedding, and their initialization."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

# GPT-2's (Radford et al., 2019).
_INITIAL_STD = 0.02


class Attention(nn.Module):
    """Multi-head attention of one sequence to another, or to itself, with torch's fused kernel."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.residual = nn.Linear(width, width)

    def forward(self, states: Tensor, memory: Tensor, causal: bool) -> Tensor:
        """`states` (batch, tokens, width) attend to `memory` (batch, its tokens, width). `causal`: each token
        attends to earlier tokens only."""
        query = self._split(self.query(states))
        key, value = self.key_value(memory).chunk(2, dim=-1)
        mixed = functional.scaled_dot_product_attention(
            query, self._split(key), self._split(value), is_causal=causal
        )
        output: Tensor = self.residual(mixed.transpose(1, 2).flatten(2))
        return output

    def _split(self, states: Tensor) -> Tensor:
        batch, tokens, width = states.shape
        return states.view(batch, tokens, self._heads, width // self._heads).transpose(1, 2)


class FeedForward(nn.Module):
    """Two linear layers with GELU; the inner width is four times the outer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.widen = nn.Linear(width, 4 * width)
        self.residual = nn.Linear(4 * width, width)

    def forward(self, states: Tensor) -> Tensor:
        """(…, width) → (…, width)."""
        output: Tensor = self.residual(functional.gelu(self.widen(states), approximate="tanh"))
        return output


class TransformerBlock(nn.Module):
    """A pre-norm block: self-attention, cross-attention to `memory` if `crossed`, and feed-forward, each with
    a residual connection."""

    def __init__(self, width: int, heads: int, *, causal: bool, crossed: bool = False) -> None:
        super().__init__()
        self._causal = causal
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.cross_norm = nn.LayerNorm(width) if crossed else None
        self.cross = Attention(width, heads) if crossed else None
        self.forward_norm = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width)

    def forward(self, states: Tensor, memory: Tensor | None = None) -> Tensor:
        """(batch, tokens, width) → the same shape."""
        normal = self.attention_norm(states)
        states = states + self.attention(normal, normal, self._causal)
        if self.cross is not None and self.cross_norm is not None and memory is not None:
            states = states + self.cross(self.cross_norm(states), memory, False)
        output: Tensor = states + self.feed_forward(self.forward_norm(states))
        return output


class TokenEmbedding(nn.Module):
    """Token embedding plus learned position embedding, for up to `context` positions."""

    def __init__(self, vocabulary: int, context: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, tokens) → (batch, tokens, width)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        output: Tensor = self.tokens(tokens) + self.positions(places)
        return output


def initialize(model: nn.Module, layers: int) -> None:
    """Initialize as GPT-2 does: normal weights, those of residual layers scaled down by √(2·layers)."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            scale = math.sqrt(2 * layers) if name.endswith("residual") else 1.0
            nn.init.normal_(module.weight, std=_INITIAL_STD / scale)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
