"""The samples and batches that a run's data source would yield: their shapes, without opening it."""

from pathlib import Path

import torch

from harness.catalog import model
from harness.data.shapes import CLASS_NAMES
from harness.data.source import Batch, Indices
from harness.data.synthetic import SyntheticSource
from harness.data.synthetic import open_source as open_synthetic
from harness.errors import SettingError
from harness.records import DataKind, DataShape
from harness.settings import Settings

_DIGIT_CLASSES = 10
_VOCABULARY = 256
"""A byte is a token."""


def data_shape(settings: Settings) -> DataShape:
    """The shape of the samples of `settings.data`; a test holds it to what the sources say. Raises
    SettingError when the folder named has no classes."""
    if settings.data == "synthetic":
        return open_synthetic(settings).shape
    if model(settings.model).accepts is DataKind.TEXT:
        return DataShape(DataKind.TEXT, vocabulary=_VOCABULARY, sequence_length=settings.sequence_length)
    channels, classes = 3, len(CLASS_NAMES)
    if settings.data == "digits":
        channels, classes = 1, _DIGIT_CLASSES
    elif settings.data == "images":
        classes = _folders(settings)
    size_px = settings.image_size
    return DataShape(DataKind.IMAGE, channels=channels, height=size_px, width=size_px, classes=classes)


def _folders(settings: Settings) -> int:
    root = Path(settings.data_path or "").expanduser()
    folders = [folder for folder in root.iterdir() if folder.is_dir()] if root.is_dir() else []
    if not folders:
        raise SettingError(
            "data_path",
            f"{settings.data_path!r} has no pictures in subfolders; put each class into a folder of its own.",
        )
    return len(folders)


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


class ShapeLoader:
    """Yields batches with nothing in them: a new one each time, or one resident batch."""

    def __init__(self, shape: DataShape, batch_size: int, *, resident: bool) -> None:
        self._shape = shape
        self._batch_size = batch_size
        self._batch = empty_batch(shape, batch_size) if resident else None

    def __enter__(self) -> "ShapeLoader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
    size = (batch_size, shape.sequence_length)
    return Batch(torch.empty(size, dtype=torch.int64), torch.empty(size, dtype=torch.int64))
