"""Networks on sequences."""

import math
import random

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.scripts.own_networks.plan import Field, NetworkPlan, activation, width

VOCABULARY = 256


def token_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


class Rms(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, states: Tensor) -> Tensor:
        return states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class OwnAttention(nn.Module):
    def __init__(self, draw: random.Random, size: int, heads: int, length: int, is_causal: bool) -> None:
        super().__init__()
        self.heads, self.is_causal = heads, is_causal
        self.together, self.out = nn.Linear(size, 3 * size, bias=False), nn.Linear(size, size, bias=False)
        self.kind = draw.choice(("by hand", "fused", "masked"))
        self.rotates = draw.random() < 0.4
        self.drop = nn.Dropout(draw.choice((0.0, 0.1)))
        mask = (
            torch.tril(torch.ones(length, length, dtype=torch.bool))
            if is_causal
            else torch.ones(length, length, dtype=torch.bool)
        )
        self.register_buffer("mask", mask)
        rates = 1.0 / 10000 ** (torch.arange(0, size // heads, 2) / (size // heads))
        angles = torch.outer(torch.arange(length).float(), rates)
        self.register_buffer("cosine", angles.cos().repeat_interleave(2, dim=-1))
        self.register_buffer("sine", angles.sin().repeat_interleave(2, dim=-1))

    def turn(self, states: Tensor) -> Tensor:
        even, odd = states[..., ::2], states[..., 1::2]
        swapped = torch.stack((-odd, even), dim=-1).flatten(-2)
        return states * self.cosine + swapped * self.sine

    def forward(self, states: Tensor) -> Tensor:
        batch, length, size = states.shape
        split = self.together(states).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = split.unbind(0)
        if self.rotates:
            query, key = self.turn(query), self.turn(key)
        if self.kind == "fused":
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.is_causal)
        elif self.kind == "masked":
            mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=self.mask)
        else:
            scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
            scores = scores.masked_fill(~self.mask, float("-inf"))
            mixed = self.drop(scores.softmax(dim=-1)) @ value
        return self.out(mixed.transpose(1, 2).reshape(batch, length, size))


class OwnBlock(nn.Module):
    def __init__(self, draw: random.Random, size: int, heads: int, length: int, is_causal: bool) -> None:
        super().__init__()
        norm = draw.choice((Rms, nn.LayerNorm, nn.RMSNorm))
        self.first, self.second = norm(size), norm(size)
        self.attention = OwnAttention(draw, size, heads, length, is_causal)
        self.is_gated = draw.random() < 0.5
        self.wide, self.gate = nn.Linear(size, 2 * size), nn.Linear(size, 2 * size if self.is_gated else 1)
        self.narrow, self.act, self.drop = nn.Linear(2 * size, size), activation(draw), nn.Dropout(0.1)
        self.gate.requires_grad_(self.is_gated)

    def forward(self, states: Tensor) -> Tensor:
        states = states + self.attention(self.first(states))
        normed = self.second(states)
        hidden = (
            functional.silu(self.gate(normed)) * self.wide(normed)
            if self.is_gated
            else self.act(self.wide(normed))
        )
        return states + self.drop(self.narrow(hidden))


class OwnGpt(nn.Module):
    def __init__(self, draw: random.Random, length: int) -> None:
        super().__init__()
        size, heads = width(draw, (32, 64, 96)), draw.choice((2, 4))
        self.tokens, self.places = nn.Embedding(VOCABULARY, size), nn.Embedding(length, size)
        kind = draw.randrange(1 << 30)
        self.blocks = nn.ModuleList(
            OwnBlock(random.Random(kind), size, heads, length, True) for _ in range(draw.choice((1, 2, 3)))
        )
        self.head = nn.Linear(size, VOCABULARY, bias=False)
        if draw.random() < 0.6:
            self.head.weight = self.tokens.weight
        self.checkpoints = draw.random() < 0.3

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            states = checkpoint(block, states, use_reentrant=False) if self.checkpoints else block(states)
        return self.head(states)


def gpt(draw: random.Random) -> NetworkPlan:
    length = draw.choice((32, 64, 128))
    return NetworkPlan(
        Field((length,), VOCABULARY), Field((length,), VOCABULARY), lambda: (OwnGpt(draw, length), token_loss)
    )


class OwnVit(nn.Module):
    def __init__(self, draw: random.Random, size: int, patch: int) -> None:
        super().__init__()
        wide, heads = width(draw, (32, 64, 96)), draw.choice((2, 4))
        self.patches, count = nn.Conv2d(3, wide, patch, stride=patch), (size // patch) ** 2 + 1
        self.first = nn.Parameter(torch.zeros(1, 1, wide))
        self.places = nn.Parameter(torch.zeros(1, count, wide))
        kind = draw.randrange(1 << 30)
        self.blocks = nn.Sequential(
            *(OwnBlock(random.Random(kind), wide, heads, count, False) for _ in range(draw.choice((1, 2, 3))))
        )
        self.head = nn.Sequential(nn.LayerNorm(wide), nn.Linear(wide, 10))

    def forward(self, images: Tensor) -> Tensor:
        states = self.patches(images).flatten(2).transpose(1, 2)
        states = torch.cat([self.first.expand(len(images), -1, -1), states], dim=1) + self.places
        return self.head(self.blocks(states)[:, 0])


def vit(draw: random.Random) -> NetworkPlan:
    size, patch = draw.choice((32, 48)), draw.choice((4, 8))
    return NetworkPlan(
        Field((3, size, size)), Field((), 10), lambda: (OwnVit(draw, size, patch), nn.CrossEntropyLoss())
    )


class Encoder(nn.Module):
    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        size = width(draw, (32, 64))
        self.tokens = nn.Embedding(VOCABULARY, size, padding_idx=0)
        layer = nn.TransformerEncoderLayer(
            size,
            4,
            2 * size,
            draw.choice((0.0, 0.1)),
            draw.choice(("relu", "gelu")),
            batch_first=True,
            norm_first=draw.random() < 0.5,
        )
        self.encoder = nn.TransformerEncoder(layer, draw.choice((1, 2)), enable_nested_tensor=False)
        self.masks = draw.random() < 0.5
        self.head = nn.Linear(size, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = tokens.eq(0) if self.masks else None
        return self.head(self.encoder(self.tokens(tokens), src_key_padding_mask=mask).mean(dim=1))


def encoder(draw: random.Random) -> NetworkPlan:
    length = draw.choice((32, 64, 100))
    return NetworkPlan(
        Field((length,), VOCABULARY), Field((), 4), lambda: (Encoder(draw), nn.CrossEntropyLoss())
    )


class Tagger(nn.Module):
    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        size, hidden, layers = width(draw, (16, 32)), width(draw, (32, 64)), draw.choice((1, 2))
        kind = draw.choice((nn.LSTM, nn.GRU, nn.RNN))
        self.tokens = nn.Embedding(VOCABULARY, size)
        is_wide = draw.random() < 0.6
        self.layers = kind(
            size, hidden, layers, batch_first=True, bidirectional=is_wide, dropout=0.1 if layers > 1 else 0.0
        )
        self.head = nn.Linear(hidden * (1 + is_wide), 8)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.layers(self.tokens(tokens))
        return self.head(states)


def tagger(draw: random.Random) -> NetworkPlan:
    length = draw.choice((16, 32, 80))
    return NetworkPlan(Field((length,), VOCABULARY), Field((length,), 8), lambda: (Tagger(draw), token_loss))


class Speech(nn.Module):
    def __init__(self, draw: random.Random, bands: int) -> None:
        super().__init__()
        hidden = width(draw, (32, 64))
        self.first = nn.Conv1d(bands, hidden, 5, stride=2, padding=2)
        self.layers = draw.choice((nn.GRU, nn.LSTM))(hidden, hidden, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, 30)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        states = functional.relu(self.first(inputs.transpose(1, 2))).transpose(1, 2)
        logs = self.head(self.layers(states)[0]).log_softmax(dim=-1).transpose(0, 1)
        steps = torch.full((len(inputs),), len(logs))
        lengths = torch.full((len(inputs),), targets.shape[1])
        return functional.ctc_loss(logs, targets + 1, steps, lengths)


def speech(draw: random.Random) -> NetworkPlan:
    bands, length = draw.choice((20, 40)), draw.choice((60, 120))
    return NetworkPlan(Field((length, bands)), Field((12,), 28), lambda: Speech(draw, bands))


def bag_of_words(draw: random.Random) -> NetworkPlan:
    length, size, words = draw.choice((20, 100)), width(draw, (16, 64)), draw.choice((2000, 10000))
    mode = draw.choice(("mean", "sum", "max"))

    def make() -> tuple[nn.Module, nn.Module]:
        layers = [
            nn.EmbeddingBag(words, size, mode=mode),
            nn.Linear(size, 64),
            activation(draw),
            nn.Linear(64, 4),
        ]
        return nn.Sequential(*layers), nn.CrossEntropyLoss()

    return NetworkPlan(Field((length,), 2000), Field((), 4), make)


class Cells(nn.Module):
    def __init__(self, draw: random.Random, features: int) -> None:
        super().__init__()
        self.hidden = width(draw, (32, 64))
        self.is_lstm = draw.random() < 0.5
        self.cell = (nn.LSTMCell if self.is_lstm else nn.GRUCell)(features, self.hidden)
        self.head = nn.Linear(self.hidden, 1)

    def forward(self, series: Tensor) -> Tensor:
        state = torch.zeros(len(series), self.hidden)
        memory, outputs = torch.zeros_like(state), []
        for step in range(series.shape[1]):
            if self.is_lstm:
                state, memory = self.cell(series[:, step], (state, memory))
            else:
                state = self.cell(series[:, step], state)
            outputs.append(self.head(state))
        return torch.cat(outputs, dim=1)


def quantiles(outputs: Tensor, targets: Tensor) -> Tensor:
    error = targets - outputs
    return torch.maximum(0.9 * error, -0.1 * error).mean()


def cells(draw: random.Random) -> NetworkPlan:
    length, features = draw.choice((12, 30)), draw.choice((3, 16))
    return NetworkPlan(
        Field((length, features)), Field((length,)), lambda: (Cells(draw, features), quantiles)
    )


class Translator(nn.Module):
    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        size = width(draw, (32, 64))
        self.tokens = nn.Embedding(VOCABULARY, size)
        self.encoder = draw.choice((nn.GRU, nn.LSTM))(size, size, batch_first=True)
        self.decoder = nn.GRU(size, size, batch_first=True)
        self.attention = nn.MultiheadAttention(size, 4, dropout=draw.choice((0.0, 0.1)), batch_first=True)
        self.weighs = draw.random() < 0.5
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, VOCABULARY)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        memory, _ = self.encoder(self.tokens(inputs))
        states, _ = self.decoder(self.tokens(targets[:, :-1]))
        mixed, _ = self.attention(states, memory, memory, need_weights=self.weighs)
        return token_loss(self.head(self.norm(states + mixed)), targets[:, 1:])


def translator(draw: random.Random) -> NetworkPlan:
    length = draw.choice((16, 32, 48))
    return NetworkPlan(Field((length,), VOCABULARY), Field((length,), VOCABULARY), lambda: Translator(draw))


class Selective(nn.Module):
    def __init__(self, draw: random.Random, features: int) -> None:
        super().__init__()
        size = width(draw, (32, 64))
        self.first, self.gate = nn.Linear(features, size), nn.Linear(features, size)
        self.local = nn.Conv1d(size, size, 4, padding=3, groups=size)
        self.decay, self.head = nn.Parameter(torch.rand(size)), nn.Linear(size, 1)

    def forward(self, series: Tensor) -> Tensor:
        states = self.local(self.first(series).transpose(1, 2))[..., : series.shape[1]].transpose(1, 2)
        rates = functional.softplus(self.decay) * torch.linspace(0, 1, series.shape[1])[:, None]
        mixed = torch.cumsum(functional.silu(states) * rates.exp(), dim=1) * torch.exp(-rates)
        return self.head(mixed * self.gate(series).sigmoid()).squeeze(-1)


def selective(draw: random.Random) -> NetworkPlan:
    length, features = draw.choice((32, 100)), draw.choice((4, 16))
    return NetworkPlan(
        Field((length, features)), Field((length,)), lambda: (Selective(draw, features), nn.L1Loss())
    )
