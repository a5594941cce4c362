"""Random tensors of the shape that the model accepts, generated once on the device."""

import numpy as np
import torch

from harness.catalog import model
from harness.data.source import Batch, Indices
from harness.records.data import DataKind, DataShape
from harness.settings import Settings

_CLASSES = 10
_CHANNELS = 3
_VOCABULARY = 256


class SyntheticSource:
    """`length` random samples with random labels. Training uses `batch_on`, not `fetch`."""

    def __init__(self, shape: DataShape, length: int, seed: int) -> None:
        self.shape = shape
        self.note: str | None = None
        self._length = length
        self._seed = seed

    def __len__(self) -> int:
        """The nominal number of samples."""
        return self._length

    def fetch(self, indices: Indices) -> Batch:
        """Return a random batch on the CPU: the same indices give the same batch."""
        seed = int(np.bitwise_xor.reduce(indices, initial=self._seed)) & (2**63 - 1)
        return self._noise(len(indices), torch.device("cpu"), seed)

    def batch_on(self, device: torch.device, batch_size: int) -> Batch:
        """Return one batch generated on `device`, without a copy."""
        return self._noise(batch_size, device, self._seed)

    def _noise(self, batch_size: int, device: torch.device, seed: int) -> Batch:
        generator = torch.Generator(device).manual_seed(seed)
        shape = self.shape
        if shape.kind is DataKind.IMAGE:
            size = (batch_size, shape.channels, shape.height, shape.width)
            images = torch.rand(size, generator=generator, device=device)
            return Batch(
                images, torch.randint(shape.classes, (batch_size,), generator=generator, device=device)
            )
        tokens = torch.randint(
            shape.vocabulary, (batch_size, shape.sequence_length + 1), generator=generator, device=device
        )
        return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


def shape_of(settings: Settings) -> DataShape:
    """The shape that `settings.model` accepts."""
    if model(settings.model).accepts is DataKind.IMAGE:
        size_px = settings.image_size
        return DataShape(DataKind.IMAGE, channels=_CHANNELS, height=size_px, width=size_px, classes=_CLASSES)
    return DataShape(DataKind.TEXT, vocabulary=_VOCABULARY, sequence_length=settings.sequence_length)


def open_source(settings: Settings) -> SyntheticSource:
    """Open random samples of the kind that `settings.model` accepts."""
    return SyntheticSource(shape_of(settings), settings.data_samples, settings.seed)
