"""A multilayer perceptron on flattened images."""

from collections.abc import Mapping
from itertools import pairwise

from torch import Tensor, nn

from harness.models.base import LossModel, mean_cross_entropy
from harness.records.data import DataShape


class Mlp(LossModel):
    """`layers` hidden layers of `width` units with ReLU, then one score per class."""

    def __init__(self, inputs: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        widths = [inputs] + [width] * layers
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(narrow, wide), nn.ReLU()) for narrow, wide in pairwise(widths)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean loss of images (batch, channels, height, width) against labels (batch,)."""
        hidden = inputs.flatten(1)
        for block in self.blocks:
            hidden = self.run_block(block, hidden)
        return mean_cross_entropy(self.head(hidden), targets)


def build(params: Mapping[str, int], shape: DataShape) -> Mlp:
    """An Mlp for images of `shape`; `params`: width, layers."""
    pixels = shape.channels * shape.height * shape.width
    return Mlp(pixels, params["width"], params["layers"], shape.classes)
