"""A data source for tests of the loader; its workers import this module and no test."""

import torch

from harness.data.source import Batch, Indices
from harness.errors import StepscopeError
from harness.records.data import DataKind, DataShape


class Numbers:
    """A source whose sample is its own number; number `bad` cannot be read."""

    def __init__(self, length: int, bad: int = -1) -> None:
        self.shape = DataShape(DataKind.IMAGE, channels=1, height=1, width=1, classes=length)
        self.note: str | None = None
        self._length = length
        self._bad = bad

    def __len__(self) -> int:
        return self._length

    def fetch(self, indices: Indices) -> Batch:
        if self._bad in indices:
            raise StepscopeError(f"The file {self._bad!r} can no longer be read.")
        numbers = torch.from_numpy(indices)
        return Batch(numbers.float()[:, None, None, None], numbers)
