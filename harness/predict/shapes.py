"""Empty batches in the shapes of a run's data source."""

import torch
from torch import Tensor

from harness.closing import Closing
from harness.data.source import Batch, Indices
from harness.data.synthetic import SyntheticSource
from harness.records.data import DataKind, DataShape, TensorShape
from harness.records.ranks import RankPlace
from harness.settings import Settings


class ShapeSource:
    """A data source with a shape but no data."""

    def __init__(self, shape: DataShape) -> None:
        self.shape = shape
        self.note: str | None = None

    def __len__(self) -> int:
        """Return one: the source is not empty."""
        return 1

    def fetch(self, indices: Indices) -> Batch:
        """Return an empty batch of `len(indices)` samples."""
        return empty_batch(self.shape, len(indices))


class ShapeLoader(Closing):
    """Yields empty batches: a new one each time, or one resident batch."""

    def __init__(self, shape: DataShape, batch_size: int, *, resident: bool) -> None:
        self._shape = shape
        self._batch_size = batch_size
        self._batch = empty_batch(shape, batch_size) if resident else None

    def next(self) -> Batch:
        """Return the next batch."""
        return empty_batch(self._shape, self._batch_size) if self._batch is None else self._batch

    def worker_pids(self) -> list[int]:
        """Return no workers."""
        return []

    def close(self) -> None:
        """Do nothing: there are no workers."""


def open_shape_loader(
    source: object,
    settings: Settings,
    device: torch.device,  # noqa: ARG001  # the contract's signature
    *,
    generation: int,  # noqa: ARG001
    place: RankPlace,  # noqa: ARG001
) -> ShapeLoader:
    """Like `harness.data.loading.open_loader`, for a source without data."""
    assert isinstance(source, ShapeSource | SyntheticSource)
    return ShapeLoader(source.shape, settings.batch_size, resident=settings.data == "synthetic")


def empty_batch(shape: DataShape, batch_size: int) -> Batch:
    """Return an empty batch of `shape`, with the dtypes of sources."""
    if shape.kind is DataKind.IMAGE:
        images = torch.empty(batch_size, shape.channels, shape.height, shape.width)
        return Batch(images, torch.empty(batch_size, dtype=torch.int64))
    if shape.inputs is not None and shape.targets is not None:
        return Batch(_empty(shape.inputs, batch_size), _empty(shape.targets, batch_size))
    size = (batch_size, shape.sequence_length)
    return Batch(torch.empty(size, dtype=torch.int64), torch.empty(size, dtype=torch.int64))


def _empty(shape: TensorShape, batch_size: int) -> Tensor:
    return torch.empty((batch_size, *shape.size), dtype=getattr(torch, shape.dtype))
