"""Image models of the `transformers` library, with their presets."""

from harness.catalog.spec import InputLimits, ModelSpec, Preset
from harness.records.run import DataKind

_VIT = ModelSpec(
    key="hf-vit",
    title="ViT (transformers)",
    summary="The vision transformer of the transformers library, with random weights.",
    accepts=DataKind.IMAGE,
    default_data="shapes",
    builder="harness.models.hf:build_vit",
    requires="transformers",
    presets=(
        Preset(
            name="laptop",
            title="Laptop",
            params={"patch": 4, "width": 64, "heads": 4, "layers": 2},
            settings={"data": "digits", "batch_size": 16, "image_size": 32, "learning_rate": 0.001},
            parameters=106_058,
            scale="Two layers, 64 wide, on 4 px patches of 32 px digits: some tens of milliseconds per "
            "step on two CPU cores.",
            limits=InputLimits(image_multiple_px=4),
        ),
        Preset(
            name="workstation",
            title="Workstation",
            params={"patch": 16, "width": 384, "heads": 6, "layers": 12},
            settings={"batch_size": 64, "image_size": 224, "num_workers": 2, "learning_rate": 0.0003},
            parameters=21_667_974,
            scale="ViT-S/16 on 224 px shapes: for a GPU with 8 GiB.",
            limits=InputLimits(image_multiple_px=16),
        ),
        Preset(
            name="h200",
            title="H200",
            params={"patch": 16, "width": 768, "heads": 12, "layers": 12},
            settings={
                "batch_size": 256,
                "image_size": 224,
                "num_workers": 8,
                "data_samples": 1000000,
                "learning_rate": 0.0003,
            },
            parameters=85_803_270,
            scale="ViT-B/16 on 224 px shapes, 256 at a time: for an H200.",
            limits=InputLimits(image_multiple_px=16),
        ),
    ),
)

_RESNET = ModelSpec(
    key="hf-resnet",
    title="ResNet (transformers)",
    summary="The residual network of the transformers library, with random weights.",
    accepts=DataKind.IMAGE,
    default_data="shapes",
    builder="harness.models.hf:build_resnet",
    requires="transformers",
    can_channels_last=True,
    can_checkpoint=False,
    presets=(
        Preset(
            name="laptop",
            title="Laptop",
            params={"stem": 16, "width": 32, "stage1": 1, "stage2": 1, "stage3": 1, "stage4": 1},
            settings={"batch_size": 16, "image_size": 64, "learning_rate": 0.001},
            parameters=131_446,
            scale="One bottleneck block per stage on 64 px shapes: some tens of milliseconds per step on two "
            "CPU cores.",
            limits=InputLimits(min_image_px=64),
        ),
        Preset(
            name="workstation",
            title="Workstation",
            params={"stem": 64, "width": 256, "stage1": 2, "stage2": 2, "stage3": 2, "stage4": 2},
            settings={"batch_size": 64, "image_size": 128, "num_workers": 2, "learning_rate": 0.001},
            parameters=13_958_470,
            scale="ResNet-26 on 128 px shapes: for a GPU with 8 GiB.",
            limits=InputLimits(min_image_px=64),
        ),
        Preset(
            name="h200",
            title="H200",
            params={"stem": 64, "width": 256, "stage1": 3, "stage2": 4, "stage3": 6, "stage4": 3},
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

HF_VISION = (_VIT, _RESNET)
