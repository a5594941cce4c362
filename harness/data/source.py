"""The protocol of data sources, and opening the one that the settings name."""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from harness.catalog import data, load
from harness.records.data import DataShape
from harness.settings import Settings

# The indices of the samples to fetch, from 0 to the source's length, exclusive.
Indices = NDArray[np.int64]


class Batch(NamedTuple):
    """One batch. Images: float32 (batch, channels, height, width) in 0…1 and int64 labels (batch,). Text:
    int64 tokens (batch, sequence) and, as targets, the token after each."""

    inputs: Tensor
    targets: Tensor


class DataSource(Protocol):
    """A source of numbered samples. It is pickled for the loader's workers, so it contains plain data
    only."""

    shape: DataShape
    # One sentence about skipped content, such as unreadable files; None: nothing was skipped.
    note: str | None

    def __len__(self) -> int:
        """The number of samples."""
        ...

    def fetch(self, indices: Indices) -> Batch:
        """Return the samples at `indices`, on the CPU. Raises StepscopeError with the unreadable file."""
        ...


def shape_of(settings: Settings) -> DataShape:
    """Return the shape of the samples of `settings.data` without opening the source. Raises SettingError when
    the source is unknown or its folder has no classes."""
    shape: DataShape = load(data(settings.data).shape)(settings)
    return shape


def open_source(settings: Settings) -> DataSource:
    """Open the source that `settings.data` names. Raises SettingError when it is unknown or has no
    samples."""
    source: DataSource = load(data(settings.data).opener)(settings)
    return source
