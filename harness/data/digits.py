"""Real handwritten digits of 8×8 pixels, resized to the image size (origin and license: digits.md)."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from harness.data.source import Batch, Indices
from harness.records.data import DataKind, DataShape
from harness.settings import Settings

# Up to this size all digits are resized once (29 MB at 64 px); above it, per batch.
_RESIZE_ONCE_PX = 64
# One digit per line: 64 values from 0 to 16, row by row, then the class.
_FILE = Path(__file__).with_name("digits.csv.gz")


def _resize(images: NDArray[np.float32], size_px: int) -> Tensor:
    tensor = torch.from_numpy(images)
    if size_px == tensor.shape[-1]:
        return tensor
    return functional.interpolate(tensor, size=(size_px, size_px), mode="bilinear", align_corners=False)


class DigitsSource:
    """1,797 grayscale digits in ten classes, in the order of the file."""

    def __init__(self, shape: DataShape) -> None:
        size_px = shape.width
        rows: NDArray[np.float32] = np.loadtxt(_FILE, delimiter=",", dtype=np.float32)
        images = rows[:, :-1].reshape(-1, 1, 8, 8) / np.float32(16)
        self._size_px = size_px
        self._images = _resize(images, size_px).numpy() if size_px <= _RESIZE_ONCE_PX else images
        self._labels: NDArray[np.int64] = rows[:, -1].astype(np.int64)
        self.shape = shape
        self.note: str | None = None

    def __len__(self) -> int:
        """The number of digits."""
        return len(self._labels)

    def fetch(self, indices: Indices) -> Batch:
        """The digits at `indices`."""
        images = _resize(self._images[indices], self._size_px)
        return Batch(images, torch.from_numpy(self._labels[indices]))


def shape_of(settings: Settings) -> DataShape:
    """One grayscale channel at `settings.image_size`."""
    size_px = settings.image_size
    return DataShape(DataKind.IMAGE, channels=1, height=size_px, width=size_px, classes=10)


def open_source(settings: Settings) -> DigitsSource:
    """The digits at `settings.image_size`."""
    return DigitsSource(shape_of(settings))
