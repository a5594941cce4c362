"""A person's own dataset for the catalog's loop."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset


class Numbers(Dataset[tuple[Tensor, int]]):
    """Random features with a label."""

    def __init__(self, length: int = 64) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.randn(12, generator=torch.Generator().manual_seed(index)), index % 3


dataset = Numbers()
no_pairs = [1.0, 2.0]
empty = Numbers(0)
number = 3


def make(settings: Any) -> Numbers:
    """A dataset by the settings."""
    return Numbers(settings.batch_size * 4)
