"""A network as a person writes it, drawn at random, and the samples that it is trained on."""

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset


class Field(NamedTuple):
    """One tensor of a sample: whole numbers below `below`, or normally distributed ones where it is None."""

    size: tuple[int, ...]
    below: int | None = None
    dtype: torch.dtype = torch.float32

    def sample(self) -> Tensor:
        """Return one sample."""
        if self.below is None:
            return torch.randn(self.size, dtype=self.dtype)
        return torch.randint(0, self.below, self.size).to(
            torch.int64 if self.dtype is torch.float32 else self.dtype
        )


class NetworkPlan(NamedTuple):
    """The parts of a sample, and the function that builds the network with its loss."""

    inputs: Field
    targets: Field
    make: Callable[[], nn.Module | tuple[nn.Module, Callable[[Any, Any], Tensor]]]


Family = Callable[[random.Random], NetworkPlan]


class RandomSamples(Dataset):
    """Random samples, without a memory of their own."""

    def __init__(self, plan: NetworkPlan, count: int = 8192) -> None:
        self._fields = (plan.inputs, plan.targets)
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not 0 <= index < self._count:
            raise IndexError(index)
        inputs, targets = self._fields
        return inputs.sample(), targets.sample()


def width(draw: random.Random, choices: Sequence[int] = (16, 24, 32, 48, 64, 96)) -> int:
    """Return one of the usual widths."""
    return draw.choice(choices)


def activation(draw: random.Random) -> nn.Module:
    """Return an activation, in place in some cases."""
    return draw.choice(
        (
            nn.ReLU(),
            nn.ReLU(inplace=True),
            nn.LeakyReLU(0.1, inplace=True),
            nn.GELU(),
            nn.SiLU(),
            nn.ELU(),
            nn.Hardswish(),
            nn.Mish(),
            nn.Tanh(),
        )
    )


def norm2d(draw: random.Random, channels: int) -> nn.Module:
    """Return a normalization of images."""
    return draw.choice(
        (
            nn.BatchNorm2d(channels),
            nn.GroupNorm(4, channels),
            nn.InstanceNorm2d(channels, affine=True),
            nn.Identity(),
        )
    )
