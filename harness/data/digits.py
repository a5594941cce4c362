"""Real handwritten digits: scikit-learn's, 8×8 pixels each, enlarged to the image size.

Its file is read without importing scikit-learn, which brings scipy and pandas along: more than a second, and
tens of megabytes, in each training process and each worker of its loader.
"""

from importlib.metadata import distribution

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from harness.data.source import Batch, Indices
from harness.records import DataKind, DataShape
from harness.settings import Settings

_KEEP_ENLARGED_PX = 64
"""Up to this size all digits are enlarged once (29 MB at 64 px); above it, each batch by itself."""
_FILE = "sklearn/datasets/data/digits.csv.gz"
"""A digit a line: 64 shades from 0 to 16, row by row, then the class."""


def _enlarge(images: NDArray[np.float32], size_px: int) -> Tensor:
    tensor = torch.from_numpy(images)
    if size_px == tensor.shape[-1]:
        return tensor
    return functional.interpolate(tensor, size=(size_px, size_px), mode="bilinear", align_corners=False)


class DigitsSource:
    """1,797 grey digits in ten classes, in the order of scikit-learn's file."""

    def __init__(self, size_px: int) -> None:
        file = str(distribution("scikit-learn").locate_file(_FILE))
        rows: NDArray[np.float32] = np.loadtxt(file, delimiter=",", dtype=np.float32)
        images = rows[:, :-1].reshape(-1, 1, 8, 8) / np.float32(16)
        self._size_px = size_px
        self._images = _enlarge(images, size_px).numpy() if size_px <= _KEEP_ENLARGED_PX else images
        self._labels: NDArray[np.int64] = rows[:, -1].astype(np.int64)
        self.shape = DataShape(DataKind.IMAGE, channels=1, height=size_px, width=size_px, classes=10)
        self.note: str | None = None

    def __len__(self) -> int:
        """The number of digits."""
        return len(self._labels)

    def fetch(self, indices: Indices) -> Batch:
        """The digits at `indices`."""
        images = _enlarge(self._images[indices], self._size_px)
        return Batch(images, torch.from_numpy(self._labels[indices]))


def open_source(settings: Settings) -> DigitsSource:
    """The digits at `settings.image_size`."""
    return DigitsSource(settings.image_size)
