"""Colored shapes, drawn on demand: labeled images at any resolution, in any number."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.data.source import Batch, Indices
from harness.records.data import DataKind, DataShape
from harness.settings import Settings

CLASS_NAMES = ("disc", "square", "triangle", "ring", "cross", "diamond")

# Random numbers per sample: class, center (2), radius, background (3), color (3) and tilt.
_NUMBERS_EACH = 11


def _random_numbers(seed: int, indices: Indices, count: int) -> NDArray[np.float32]:
    """Return `count` numbers in 0…1 per index, a function of seed and index (SplitMix64)."""
    first: NDArray[np.uint64] = indices.astype(np.uint64) * np.uint64(count)
    state: NDArray[np.uint64] = np.add(first[:, None], np.arange(count, dtype=np.uint64))
    state *= np.uint64(0x9E3779B97F4A7C15)
    state += np.uint64(seed)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return (state >> np.uint64(40)).astype(np.float32) / np.float32(2**24)


def _distance(name: str, x: Tensor, y: Tensor) -> Tensor:
    """Return each pixel's distance outside the shape, in radii; negative inside. `x`, `y` are in radii."""
    match name:
        case "disc":
            return torch.hypot(x, y) - 0.9
        case "square":
            return torch.maximum(x.abs(), y.abs()) - 0.75
        case "triangle":
            return torch.maximum(0.866 * x.abs() + 0.5 * y, -y) - 0.5
        case "ring":
            return (torch.hypot(x, y) - 0.7).abs() - 0.2
        case "cross":
            return torch.minimum(
                torch.maximum(x.abs() - 0.95, y.abs() - 0.25), torch.maximum(y.abs() - 0.95, x.abs() - 0.25)
            )
        case _:
            return 1.6 * x.abs() + y.abs() - 0.95


class ShapesSource:
    """`length` images of one shape each, with random place, size, tilt, color and background color.

    An image is a function of the seed and its index, so workers share no state.
    """

    def __init__(self, shape: DataShape, length: int, seed: int) -> None:
        self.shape = shape
        self.note: str | None = None
        self._length = length
        self._seed = seed

    def __len__(self) -> int:
        """The number of images."""
        return self._length

    def fetch(self, indices: Indices) -> Batch:
        """Draw the images at `indices`."""
        numbers = torch.from_numpy(_random_numbers(self._seed, indices, _NUMBERS_EACH))
        labels = (numbers[:, 0] * len(CLASS_NAMES)).long().clamp_(max=len(CLASS_NAMES) - 1)
        x, y, radius = self._coordinates(numbers)
        distance = torch.empty(len(indices), self.shape.height, self.shape.width)
        for number, name in enumerate(CLASS_NAMES):
            of_class = (labels == number).nonzero().squeeze(1)
            distance[of_class] = _distance(name, x[of_class], y[of_class])
        # A soft edge of one pixel at any resolution.
        cover = (0.5 - distance * radius * (self.shape.width / 2)).clamp_(0, 1).unsqueeze(1)
        background, color = numbers[:, 4:7] * 0.5, 0.5 + numbers[:, 7:10] * 0.5
        return Batch(torch.lerp(background[:, :, None, None], color[:, :, None, None], cover), labels)

    def _coordinates(self, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return each pixel's position (batch, height, width) relative to the shape, and the radius
        (batch, 1, 1)."""
        line = (torch.arange(self.shape.width) + 0.5) / self.shape.width * 2 - 1
        radius = (0.35 + 0.4 * numbers[:, 3])[:, None, None]
        x = (line[None, None, :] - (numbers[:, 1, None, None] - 0.5) * 0.5) / radius
        y = (line[None, :, None] - (numbers[:, 2, None, None] - 0.5) * 0.5) / radius
        tilt = (numbers[:, 10, None, None] - 0.5) * 0.5
        cosine, sine = tilt.cos(), tilt.sin()
        return x * cosine + y * sine, y * cosine - x * sine, radius


def shape_of(settings: Settings) -> DataShape:
    """Three channels at `settings.image_size`."""
    size_px = settings.image_size
    return DataShape(DataKind.IMAGE, channels=3, height=size_px, width=size_px, classes=len(CLASS_NAMES))


def open_source(settings: Settings) -> ShapesSource:
    """`settings.data_samples` shapes at `settings.image_size`."""
    return ShapesSource(shape_of(settings), settings.data_samples, settings.seed)
