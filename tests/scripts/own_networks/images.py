"""Networks on images, volumes and waveforms."""

import random

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from tests.scripts.own_networks.plan import Field, NetworkPlan, activation, norm2d, width


def convolution(draw: random.Random, inputs: int, outputs: int, **options: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=options.get("dilation", 1), **options),
        norm2d(draw, outputs),
        activation(draw),
    )


class UNet(nn.Module):
    def __init__(self, draw: random.Random, channels: int, base: int, depth: int, outputs: int) -> None:
        super().__init__()
        sizes = [base << level for level in range(depth + 1)]
        self.downs = nn.ModuleList()
        for size in sizes:
            self.downs.append(nn.Sequential(convolution(draw, channels, size), convolution(draw, size, size)))
            channels = size
        self.is_transposed = draw.random() < 0.5
        self.ups = nn.ModuleList(
            nn.ConvTranspose2d(2 * size, size, 2, stride=2)
            if self.is_transposed
            else nn.Conv2d(2 * size, size, 1)
            for size in sizes[-2::-1]
        )
        self.joins = nn.ModuleList(convolution(draw, 2 * size, size) for size in sizes[-2::-1])
        self.head = nn.Conv2d(base, outputs, 1)

    def forward(self, images: Tensor) -> Tensor:
        skips = []
        for level, down in enumerate(self.downs):
            images = down(functional.max_pool2d(images, 2) if level else images)
            skips.append(images)
        skips.pop()
        for up, join in zip(self.ups, self.joins, strict=True):
            if not self.is_transposed:
                images = functional.interpolate(images, scale_factor=2, mode="bilinear")
            images = join(torch.cat([skips.pop(), up(images)], dim=1))
        return self.head(images)


def dice_and_bce(outputs: Tensor, targets: Tensor) -> Tensor:
    targets = targets.float()
    shares = outputs.squeeze(1).sigmoid()
    overlap = 2 * (shares * targets).sum() / (shares.sum() + targets.sum() + 1e-6)
    return 1 - overlap + functional.binary_cross_entropy_with_logits(outputs.squeeze(1), targets)


def focal(outputs: Tensor, targets: Tensor) -> Tensor:
    logs = functional.log_softmax(outputs, dim=1)
    own = logs.gather(1, targets.unsqueeze(1)).squeeze(1)
    return -((1 - own.exp()) ** 2 * own).mean()


def unet(draw: random.Random) -> NetworkPlan:
    size, base, depth = draw.choice((32, 48, 64)), draw.choice((8, 12, 16)), draw.choice((1, 2, 3))
    is_binary = draw.random() < 0.5
    outputs = 1 if is_binary else draw.choice((3, 7))
    loss = dice_and_bce if is_binary else draw.choice((focal, nn.CrossEntropyLoss()))
    return NetworkPlan(
        Field((3, size, size)),
        Field((size, size), 2 if is_binary else outputs),
        lambda: (UNet(draw, 3, base, depth, outputs), loss),
    )


class ConvNextBlock(nn.Module):
    def __init__(self, channels: int, drop: float) -> None:
        super().__init__()
        self.spatial = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.wide = nn.Linear(channels, 4 * channels)
        self.narrow = nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(1e-6 * torch.ones(channels))
        self.drop = drop

    def forward(self, images: Tensor) -> Tensor:
        changed = self.norm(self.spatial(images).permute(0, 2, 3, 1))
        changed = self.scale * self.narrow(functional.gelu(self.wide(changed)))
        changed = changed.permute(0, 3, 1, 2)
        if self.drop:
            mask = torch.rand(len(images), 1, 1, 1) >= self.drop
            changed = changed * mask / (1 - self.drop)
        return images + changed


def convnext(draw: random.Random) -> NetworkPlan:
    channels, blocks, size = width(draw), draw.choice((1, 2, 4)), draw.choice((32, 64))
    drop, patch = draw.choice((0.0, 0.1)), draw.choice((2, 4))

    def make() -> tuple[nn.Module, nn.Module]:
        layers = [nn.Conv2d(3, channels, patch, stride=patch)]
        layers += [ConvNextBlock(channels, drop) for _ in range(blocks)]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]
        return nn.Sequential(*layers), nn.CrossEntropyLoss(label_smoothing=0.1)

    return NetworkPlan(Field((3, size, size)), Field((), 10), make)


class SqueezeBlock(nn.Module):
    def __init__(self, draw: random.Random, channels: int, groups: int, dilation: int) -> None:
        super().__init__()
        self.first = convolution(draw, channels, channels, groups=groups)
        self.second = nn.Conv2d(channels, channels, 3, padding=dilation, dilation=dilation, bias=False)
        self.norm = norm2d(draw, channels)
        self.gate = nn.Sequential(
            nn.Linear(channels, channels // 4), nn.ReLU(), nn.Linear(channels // 4, channels)
        )
        self.act = nn.ReLU(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        changed = self.norm(self.second(self.first(images)))
        gate = self.gate(changed.mean(dim=(2, 3))).sigmoid()[:, :, None, None]
        changed = changed * gate
        changed += images
        return self.act(changed)


class SqueezeNet(nn.Module):
    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        channels, self.checkpoints = width(draw, (16, 32, 64)), draw.random() < 0.4
        self.stem = convolution(draw, 3, channels, stride=2)
        self.blocks = nn.ModuleList(
            SqueezeBlock(draw, channels, draw.choice((1, 4, channels)), draw.choice((1, 2)))
            for _ in range(draw.choice((2, 3, 4)))
        )
        self.drop = nn.Dropout2d(0.1)
        self.head = nn.Linear(channels, 20)

    def forward(self, images: Tensor) -> Tensor:
        images = self.stem(images)
        for block in self.blocks:
            images = checkpoint(block, images, use_reentrant=False) if self.checkpoints else block(images)
        return self.head(self.drop(images).flatten(2).amax(dim=2))


def squeeze(draw: random.Random) -> NetworkPlan:
    size = draw.choice((24, 32, 64))
    return NetworkPlan(
        Field((3, size, size)), Field((), 20), lambda: (SqueezeNet(draw), nn.CrossEntropyLoss())
    )


class Vae(nn.Module):
    def __init__(self, draw: random.Random, size: int) -> None:
        super().__init__()
        base, latent = width(draw, (8, 16, 32)), draw.choice((8, 32))
        self.encoder = nn.Sequential(
            nn.Conv2d(3, base, 4, 2, 1),
            activation(draw),
            nn.Conv2d(base, 2 * base, 4, 2, 1),
            activation(draw),
        )
        features = 2 * base * (size // 4) ** 2
        self.mean, self.variance = nn.Linear(features, latent), nn.Linear(features, latent)
        self.start = nn.Linear(latent, features)
        self.decoder = nn.Sequential(
            nn.Unflatten(1, (2 * base, size // 4, size // 4)),
            nn.ConvTranspose2d(2 * base, base, 4, 2, 1),
            activation(draw),
            nn.ConvTranspose2d(base, 3, 4, 2, 1),
        )

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        features = self.encoder(inputs).flatten(1)
        mean, log_variance = self.mean(features), self.variance(features)
        latent = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        outputs = self.decoder(self.start(latent))
        rebuilt = functional.mse_loss(outputs, targets, reduction="sum") / len(inputs)
        divergence = -0.5 * torch.mean(torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp(), dim=1))
        return rebuilt + divergence


def vae(draw: random.Random) -> NetworkPlan:
    size = draw.choice((16, 32, 64))
    return NetworkPlan(Field((3, size, size)), Field((3, size, size)), lambda: Vae(draw, size))


def volumes(draw: random.Random) -> NetworkPlan:
    size, base = draw.choice((12, 16, 24)), draw.choice((4, 8, 16))

    def make() -> tuple[nn.Module, nn.Module]:
        layers = [
            nn.Conv3d(1, base, 3, padding=1),
            draw.choice((nn.BatchNorm3d(base), nn.InstanceNorm3d(base), nn.GroupNorm(2, base))),
            nn.ReLU(inplace=True),
            draw.choice((nn.MaxPool3d(2), nn.AvgPool3d(2))),
            nn.Conv3d(base, 2 * base, 3, stride=2, padding=1),
            activation(draw),
            nn.AdaptiveAvgPool3d(1),
            nn.Flatten(),
            nn.Linear(2 * base, 5),
        ]
        return nn.Sequential(*layers), nn.CrossEntropyLoss()

    return NetworkPlan(Field((1, size, size, size)), Field((), 5), make)


class SpectralLayer(nn.Module):
    def __init__(self, channels: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(
            torch.randn(channels, channels, modes, modes, dtype=torch.cfloat) / channels
        )
        self.local = nn.Conv2d(channels, channels, 1)

    def forward(self, images: Tensor) -> Tensor:
        spectrum = torch.fft.rfft2(images.float())
        changed = torch.zeros_like(spectrum)
        low = spectrum[:, :, : self.modes, : self.modes]
        changed[:, :, : self.modes, : self.modes] = torch.einsum("bixy,ioxy->boxy", low, self.weight)
        return functional.gelu(torch.fft.irfft2(changed, s=images.shape[-2:]) + self.local(images))


def fourier(draw: random.Random) -> NetworkPlan:
    size, channels = draw.choice((24, 32, 48)), draw.choice((8, 16, 24))
    layers, modes = draw.choice((1, 2, 3)), draw.choice((4, 8))

    def make() -> tuple[nn.Module, nn.Module]:
        middle = [SpectralLayer(channels, modes) for _ in range(layers)]
        return nn.Sequential(nn.Conv2d(2, channels, 1), *middle, nn.Conv2d(channels, 1, 1)), nn.MSELoss()

    return NetworkPlan(Field((2, size, size)), Field((1, size, size)), make)


def discriminator(draw: random.Random) -> NetworkPlan:
    size, base = draw.choice((32, 64)), draw.choice((8, 16, 32))
    normed = draw.choice((parametrizations.spectral_norm, parametrizations.weight_norm))

    def make() -> tuple[nn.Module, nn.Module]:
        layers: list[nn.Module] = []
        channels = 3
        for level in range(draw.choice((2, 3))):
            layers += [normed(nn.Conv2d(channels, base << level, 4, 2, 1)), nn.LeakyReLU(0.2, inplace=True)]
            channels = base << level
        layers += [nn.Flatten(), nn.AdaptiveMaxPool1d(1)]
        return nn.Sequential(*layers), hinge

    return NetworkPlan(Field((3, size, size)), Field((1,)), make)


def hinge(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.relu(1 - targets.sign() * outputs).mean()


class GatedBlock(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.pad = dilation
        self.both = nn.Conv1d(channels, 2 * channels, 2, dilation=dilation)
        self.out = nn.Conv1d(channels, channels, 1)

    def forward(self, wave: Tensor) -> Tensor:
        left, right = self.both(functional.pad(wave, (self.pad, 0))).chunk(2, dim=1)
        return wave + self.out(torch.tanh(left) * torch.sigmoid(right))


def wavenet(draw: random.Random) -> NetworkPlan:
    channels, layers, length = draw.choice((16, 32)), draw.choice((3, 5)), draw.choice((256, 512, 1000))

    def make() -> tuple[nn.Module, nn.Module]:
        blocks = [GatedBlock(channels, 1 << level) for level in range(layers)]
        return nn.Sequential(
            nn.Conv1d(1, channels, 1), *blocks, nn.Conv1d(channels, 32, 1)
        ), nn.CrossEntropyLoss()

    return NetworkPlan(Field((1, length)), Field((length,), 32), make)


def superresolution(draw: random.Random) -> NetworkPlan:
    size, base, factor = draw.choice((16, 24, 32)), width(draw, (16, 32, 64)), draw.choice((2, 3))

    def make() -> tuple[nn.Module, nn.Module]:
        layers = [nn.Conv2d(3, base, 5, padding=2), nn.PReLU(base)]
        layers += [convolution(draw, base, base) for _ in range(draw.choice((1, 3)))]
        layers += [nn.Conv2d(base, 3 * factor**2, 3, padding=1), nn.PixelShuffle(factor)]
        loss = draw.choice((nn.L1Loss(), nn.MSELoss(), nn.SmoothL1Loss(), nn.HuberLoss()))
        return nn.Sequential(*layers), loss

    return NetworkPlan(Field((3, size, size)), Field((3, size * factor, size * factor)), make)


class Frozen(nn.Module):
    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        base = width(draw, (16, 32))
        self.trunk = nn.Sequential(
            convolution(draw, 3, base, stride=2), convolution(draw, base, 2 * base, stride=2)
        )
        self.trunk.requires_grad_(False)
        self.is_watched = draw.random() < 0.5
        self.head = nn.Sequential(
            nn.Linear(2 * base, 64), activation(draw), nn.Dropout(0.2), nn.Linear(64, 10)
        )

    def forward(self, images: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.is_watched):
            features = self.trunk(images).mean(dim=(2, 3))
        return self.head(features)


def frozen(draw: random.Random) -> NetworkPlan:
    size = draw.choice((32, 48, 64))
    return NetworkPlan(Field((3, size, size)), Field((), 10), lambda: (Frozen(draw), nn.CrossEntropyLoss()))


class Distilled(nn.Module):
    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        base = width(draw, (16, 32))
        self.teacher = nn.Sequential(
            convolution(draw, 3, 2 * base), convolution(draw, 2 * base, 2 * base, stride=2)
        )
        self.teacher_head = nn.Linear(2 * base, 10)
        self.student = nn.Sequential(
            convolution(draw, 3, base, stride=2), convolution(draw, base, base, stride=2)
        )
        self.student_head = nn.Linear(base, 10)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        with torch.no_grad():
            goal = functional.softmax(self.teacher_head(self.teacher(inputs).mean(dim=(2, 3))) / 2, dim=1)
        logits = self.student_head(self.student(inputs).mean(dim=(2, 3)))
        soft = functional.kl_div(functional.log_softmax(logits / 2, dim=1), goal, reduction="batchmean")
        return 4 * soft + functional.cross_entropy(logits, targets)


def distillation(draw: random.Random) -> NetworkPlan:
    size = draw.choice((24, 32, 48))
    return NetworkPlan(Field((3, size, size)), Field((), 10), lambda: Distilled(draw))


class Detector(nn.Module):
    def __init__(self, draw: random.Random, anchors: int, classes: int) -> None:
        super().__init__()
        base = width(draw, (16, 24, 32))
        self.trunk = nn.Sequential(*(convolution(draw, c, base, stride=2) for c in (3, base, base)))
        self.boxes = nn.Conv2d(base, 4 * anchors, 3, padding=1)
        self.classes = nn.Conv2d(base, classes, 3, padding=1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.trunk(images)
        return self.boxes(features), self.classes(features)


def detection_loss(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    boxes, classes = outputs
    goal = functional.one_hot(targets, classes.shape[1]).movedim(-1, 1).to(classes.dtype)
    error = functional.binary_cross_entropy_with_logits(classes, goal, reduction="none")
    certain = torch.sigmoid(classes)
    weight = torch.where(goal > 0, 1 - certain, certain) ** 2
    near = functional.smooth_l1_loss(boxes, torch.zeros_like(boxes))
    return (weight * error).sum() / max(1, len(targets)) + near


def detection(draw: random.Random) -> NetworkPlan:
    size, anchors, classes = draw.choice((32, 64)), draw.choice((1, 3)), draw.choice((4, 20))
    return NetworkPlan(
        Field((3, size, size)),
        Field((size // 8, size // 8), classes),
        lambda: (Detector(draw, anchors, classes), detection_loss),
    )
