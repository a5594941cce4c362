"""What a source of samples is, and opening the one the settings name."""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from harness.catalog import data, load
from harness.records import DataShape
from harness.settings import Settings

# Which samples to fetch: a vector of numbers from 0 to the source's length, exclusive.
Indices = NDArray[np.int64]


class Batch(NamedTuple):
    """One batch. Images: float32 (batch, channels, height, width) in 0…1 and int64 labels (batch,). Text:
    int64 tokens (batch, sequence) and, as targets, the token after each."""

    inputs: Tensor
    targets: Tensor


class DataSource(Protocol):
    """A source of numbered samples. It is pickled to the loader's workers, so it holds plain data only."""

    shape: DataShape
    # One sentence on what was left out, such as files that could not be read; None: nothing was.
    note: str | None

    def __len__(self) -> int:
        """The number of samples."""
        ...

    def fetch(self, indices: Indices) -> Batch:
        """The samples at `indices`, on the CPU, in one go. Raises StepscopeError naming the file it could
        not read."""
        ...


def shape_of(settings: Settings) -> DataShape:
    """The shape of the samples of the source that `settings.data` names, without opening it. Raises
    SettingError when the source is unknown, or its folder has no classes."""
    shape: DataShape = load(data(settings.data).shape)(settings)
    return shape


def open_source(settings: Settings) -> DataSource:
    """The source that `settings.data` names. Raises SettingError when it is unknown, or has no samples."""
    source: DataSource = load(data(settings.data).opener)(settings)
    return source
