"""A residual network of bottleneck blocks, up to ResNet-50 and beyond (He et al., 2015, arXiv:1512.03385)."""

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional

from harness.models.base import LossModel, mean_cross_entropy
from harness.records.data import DataShape

_EXPANSION = 4


def _convolution(channels_in: int, channels_out: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels_out, size, stride, padding=size // 2, bias=False)


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions with batch norm and a shortcut. The 3×3 convolution has the stride."""

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        channels_out = width * _EXPANSION
        self.body = nn.Sequential(
            _convolution(channels_in, width, 1),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            _convolution(width, width, 3, stride),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            _convolution(width, channels_out, 1),
            nn.BatchNorm2d(channels_out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                _convolution(channels_in, channels_out, 1, stride), nn.BatchNorm2d(channels_out)
            )

    def forward(self, inputs: Tensor) -> Tensor:
        """(batch, channels, height, width) → (batch, 4·width, height/stride, width/stride)."""
        return functional.relu(self.body(inputs) + self.shortcut(inputs))


class ResNet(LossModel):
    """A stem and four stages of bottleneck blocks.

    The large stem (7×7, stride 2, and a pool) divides the image size by four; the small stem (3×3), for
    images of about 32 px, preserves it. Under checkpointing the batch norms' running statistics, which
    training does not read, are updated twice per step.
    """

    def __init__(self, shape: DataShape, width: int, stages: tuple[int, ...], large_stem: bool) -> None:
        super().__init__()
        stem: list[nn.Module] = [
            _convolution(shape.channels, width, 7, 2)
            if large_stem
            else _convolution(shape.channels, width, 3),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
        ]
        if large_stem:
            stem.append(nn.MaxPool2d(3, stride=2, padding=1))
        self.stem = nn.Sequential(*stem)
        self.blocks = nn.ModuleList()
        channels = width
        for stage, depth in enumerate(stages):
            for block in range(depth):
                stride = 2 if stage > 0 and block == 0 else 1
                self.blocks.append(Bottleneck(channels, width * 2**stage, stride))
                channels = width * 2**stage * _EXPANSION
        self.head = nn.Linear(channels, shape.classes)
        self._initialize()

    def _initialize(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, Bottleneck):
                # The last norm starts at zero, so that every block starts as the identity.
                last = module.body[-1]
                assert isinstance(last, nn.BatchNorm2d)
                nn.init.zeros_(last.weight)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean loss of images (batch, channels, height, width) against labels (batch,)."""
        hidden = self.stem(inputs)
        for block in self.blocks:
            hidden = self.run_block(block, hidden)
        return mean_cross_entropy(self.head(hidden.mean((2, 3))), targets)


def build(params: Mapping[str, int], shape: DataShape) -> ResNet:
    """A ResNet for images of `shape`; `params`: width, stage1 to stage4 (blocks), large_stem (0 or 1)."""
    stages = tuple(params[f"stage{number}"] for number in range(1, 5))
    return ResNet(shape, params["width"], stages, bool(params["large_stem"]))
