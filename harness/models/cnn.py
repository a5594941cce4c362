"""The classic small convolutional network: convolution, pool, convolution, pool, fully connected."""

from collections.abc import Mapping

from torch import Tensor, nn

from harness.models.base import LossModel, mean_cross_entropy
from harness.records.data import DataShape


def _convolve_and_pool(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels_in, channels_out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))


class Cnn(LossModel):
    """Two 3×3 convolutions with `channels` and twice that, each halving the image, then two linear layers."""

    def __init__(self, shape: DataShape, channels: int, hidden: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            [_convolve_and_pool(shape.channels, channels), _convolve_and_pool(channels, 2 * channels)]
        )
        features = 2 * channels * (shape.height // 4) * (shape.width // 4)
        self.head = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, shape.classes))

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean loss of images (batch, channels, height, width) against labels (batch,)."""
        hidden = inputs
        for block in self.blocks:
            hidden = self.run_block(block, hidden)
        return mean_cross_entropy(self.head(hidden.flatten(1)), targets)


def build(params: Mapping[str, int], shape: DataShape) -> Cnn:
    """A Cnn for images of `shape`; `params`: channels, hidden."""
    return Cnn(shape, params["channels"], params["hidden"])
