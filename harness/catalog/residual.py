"""Stepscope's own residual network, with its presets."""

from harness.catalog.spec import InputLimits, ModelSpec, Preset
from harness.records.run import DataKind

RESNET = ModelSpec(
    key="resnet",
    title="ResNet",
    summary="A residual network of bottleneck blocks, up to ResNet-50.",
    accepts=DataKind.IMAGE,
    default_data="shapes",
    builder="harness.models.resnet:build",
    can_channels_last=True,
    presets=(
        Preset(
            name="laptop",
            title="Laptop",
            params={"width": 8, "stage1": 1, "stage2": 1, "stage3": 1, "stage4": 1, "large_stem": 0},
            settings={"batch_size": 16, "image_size": 32, "learning_rate": 0.003},
            parameters=128_974,
            scale="One bottleneck block per stage, 8 channels wide, on 32 px shapes: some tens of "
            "milliseconds per step on two CPU cores.",
            limits=InputLimits(min_image_px=16),
        ),
        Preset(
            name="workstation",
            title="Workstation",
            params={"width": 64, "stage1": 2, "stage2": 2, "stage3": 2, "stage4": 2, "large_stem": 1},
            settings={"batch_size": 64, "image_size": 128, "num_workers": 2, "learning_rate": 0.001},
            parameters=13_958_470,
            scale="ResNet-26 (two blocks per stage) on 128 px shapes: for a GPU with 8 GiB.",
            limits=InputLimits(min_image_px=64),
        ),
        Preset(
            name="h200",
            title="H200",
            params={"width": 64, "stage1": 3, "stage2": 4, "stage3": 6, "stage4": 3, "large_stem": 1},
            settings={
                "batch_size": 256,
                "image_size": 224,
                "num_workers": 8,
                "data_samples": 1000000,
                "learning_rate": 0.001,
            },
            parameters=23_520_326,
            scale="ResNet-50 on 224 px shapes, 256 at a time: about 20 GiB of activations, for an H200.",
            limits=InputLimits(min_image_px=64),
        ),
    ),
)
