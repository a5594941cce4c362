"""Stepscope's own image models, with their presets."""

from harness.catalog.spec import InputLimits, ModelSpec, Preset
from harness.records.run import DataKind

_MLP = ModelSpec(
    key="mlp",
    title="MLP",
    summary="Fully connected layers on the flattened image: the smallest model.",
    accepts=DataKind.IMAGE,
    default_data="digits",
    builder="harness.models.mlp:build",
    presets=(
        Preset(
            name="laptop",
            title="Laptop",
            params={"width": 128, "layers": 2},
            settings={"batch_size": 32, "image_size": 16, "learning_rate": 1e-3},
            parameters=50_698,
            scale="Two hidden layers of 128 on 16 px digits: about a millisecond per step on two CPU cores.",
        ),
        Preset(
            name="workstation",
            title="Workstation",
            params={"width": 2048, "layers": 4},
            settings={"batch_size": 256, "image_size": 32, "learning_rate": 3e-4},
            parameters=14_708_746,
            scale="Four hidden layers of 2,048 on 32 px digits: for any GPU with 2 GiB.",
        ),
        Preset(
            name="h200",
            title="H200",
            params={"width": 16384, "layers": 8},
            settings={"batch_size": 4096, "image_size": 64, "learning_rate": 1e-4},
            parameters=1_946_451_978,
            scale="Eight hidden layers of 16,384, matrix products large enough to fill an H200; with "
            "AdamW about 29 GiB of weights, gradients and optimizer state.",
        ),
    ),
)

_CNN = ModelSpec(
    key="cnn",
    title="CNN",
    summary="The classic convolution, pool, convolution, pool, fully connected network, at any image size.",
    accepts=DataKind.IMAGE,
    default_data="digits",
    builder="harness.models.cnn:build",
    can_channels_last=True,
    presets=(
        Preset(
            name="laptop",
            title="Laptop",
            params={"channels": 16, "hidden": 128},
            settings={"batch_size": 32, "image_size": 16, "learning_rate": 1e-3},
            parameters=71_754,
            scale="16 and 32 channels on 16 px digits: a few milliseconds per step on two CPU cores.",
            limits=InputLimits(min_image_px=4),
        ),
        Preset(
            name="workstation",
            title="Workstation",
            params={"channels": 64, "hidden": 512},
            settings={"batch_size": 256, "image_size": 32, "learning_rate": 5e-4},
            parameters=4_274_442,
            scale="64 and 128 channels on 32 px digits: for any GPU with 2 GiB.",
            limits=InputLimits(min_image_px=4),
        ),
        Preset(
            name="h200",
            title="H200",
            params={"channels": 128, "hidden": 1024},
            settings={"batch_size": 512, "image_size": 128, "learning_rate": 1e-4},
            parameters=268_743_178,
            scale="128 and 256 channels on 128 px digits: over ten GiB of activations, for an H200.",
            limits=InputLimits(min_image_px=4),
        ),
    ),
)

VISION = (_MLP, _CNN)
