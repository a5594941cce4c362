"""Batches of the shapes that a run's data source would yield, with nothing in them."""

import torch
from torch import Tensor

from harness.closing import Closing
from harness.data.source import Batch, Indices
from harness.data.synthetic import SyntheticSource
from harness.records.run import DataKind, DataShape, TensorShape
from harness.settings import Settings


class ShapeSource:
    """A data source that knows its shape alone."""

    def __init__(self, shape: DataShape) -> None:
        self.shape = shape
        self.note: str | None = None

    def __len__(self) -> int:
        """One, which is enough not to be empty."""
        return 1

    def fetch(self, indices: Indices) -> Batch:
        """As many samples as there are `indices`, with nothing in them."""
        return empty_batch(self.shape, len(indices))


class ShapeLoader(Closing):
    """Yields batches with nothing in them: a new one each time, or one resident batch."""

    def __init__(self, shape: DataShape, batch_size: int, *, resident: bool) -> None:
        self._shape = shape
        self._batch_size = batch_size
        self._batch = empty_batch(shape, batch_size) if resident else None

    def next(self) -> Batch:
        """The next batch."""
        return empty_batch(self._shape, self._batch_size) if self._batch is None else self._batch

    def worker_pids(self) -> list[int]:
        """None, ever."""
        return []

    def close(self) -> None:
        """Nothing to stop."""


def open_shape_loader(
    source: object,
    settings: Settings,
    device: torch.device,  # noqa: ARG001  # the contract's signature
    *,
    generation: int,  # noqa: ARG001
) -> ShapeLoader:
    """As `harness.data.loading.open_loader`, for a source whose shape is all that is wanted."""
    assert isinstance(source, ShapeSource | SyntheticSource)
    return ShapeLoader(source.shape, settings.batch_size, resident=settings.data == "synthetic")


def empty_batch(shape: DataShape, batch_size: int) -> Batch:
    """A batch of `shape`, of the types that sources yield."""
    if shape.kind is DataKind.IMAGE:
        images = torch.empty(batch_size, shape.channels, shape.height, shape.width)
        return Batch(images, torch.empty(batch_size, dtype=torch.int64))
    if shape.inputs is not None and shape.targets is not None:
        return Batch(_empty(shape.inputs, batch_size), _empty(shape.targets, batch_size))
    size = (batch_size, shape.sequence_length)
    return Batch(torch.empty(size, dtype=torch.int64), torch.empty(size, dtype=torch.int64))


def _empty(shape: TensorShape, batch_size: int) -> Tensor:
    return torch.empty((batch_size, *shape.size), dtype=getattr(torch, shape.dtype))
