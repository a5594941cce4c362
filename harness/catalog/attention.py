"""Stepscope's own transformers, with their presets."""

from harness.catalog.spec import InputLimits, ModelSpec, Preset
from harness.records.run import DataKind

_TRANSFORMER = ModelSpec(
    key="transformer",
    title="Transformer",
    summary="A decoder that predicts text byte by byte, up to the size of GPT-2 small.",
    accepts=DataKind.TEXT,
    default_data="stdlib-text",
    builder="harness.models.transformer:build",
    presets=(
        Preset(
            name="laptop",
            title="Laptop",
            params={"context": 256, "width": 64, "heads": 4, "layers": 2},
            settings={"batch_size": 16, "sequence_length": 64, "learning_rate": 0.003},
            parameters=132_864,
            scale="Two layers, 64 wide, on 64 bytes: about ten milliseconds per step on two CPU cores.",
            limits=InputLimits(max_tokens=256),
        ),
        Preset(
            name="workstation",
            title="Workstation",
            params={"context": 1024, "width": 512, "heads": 8, "layers": 6},
            settings={"batch_size": 32, "sequence_length": 256, "learning_rate": 0.0006},
            parameters=19_570_688,
            scale="Six layers, 512 wide, on 256 bytes: for a GPU with 8 GiB.",
            limits=InputLimits(max_tokens=1024),
        ),
        Preset(
            name="h200",
            title="H200",
            params={"context": 1024, "width": 768, "heads": 12, "layers": 12},
            settings={"batch_size": 64, "sequence_length": 1024, "learning_rate": 0.0006},
            parameters=86_039_040,
            scale="GPT-2 small without its large vocabulary (12 layers, 768 wide, 12 heads), 64 texts of "
            "1,024 bytes at a time: for an H200.",
            limits=InputLimits(max_tokens=1024),
        ),
    ),
)

_SEQ2SEQ = ModelSpec(
    key="seq2seq",
    title="Encoder-decoder",
    summary="A transformer that reads the first half of a text and predicts the second.",
    accepts=DataKind.TEXT,
    default_data="stdlib-text",
    builder="harness.models.seq2seq:build",
    presets=(
        Preset(
            name="laptop",
            title="Laptop",
            params={"context": 128, "width": 64, "heads": 4, "layers": 2},
            settings={"batch_size": 16, "sequence_length": 64, "learning_rate": 0.003},
            parameters=258_304,
            scale="Two layers on either side, 64 wide, 32 bytes in and 32 out: about ten milliseconds per "
            "step on two CPU cores.",
            limits=InputLimits(max_tokens=256, token_multiple=2),
        ),
        Preset(
            name="workstation",
            title="Workstation",
            params={"context": 512, "width": 512, "heads": 8, "layers": 6},
            settings={"batch_size": 32, "sequence_length": 256, "learning_rate": 0.0006},
            parameters=44_533_760,
            scale="Six layers on either side, 512 wide (the first transformer's base size), 128 bytes in "
            "and out: for a GPU with 8 GiB.",
            limits=InputLimits(max_tokens=1024, token_multiple=2),
        ),
        Preset(
            name="h200",
            title="H200",
            params={"context": 1024, "width": 1024, "heads": 16, "layers": 12},
            settings={"batch_size": 32, "sequence_length": 1024, "learning_rate": 0.0003},
            parameters=354_029_568,
            scale="Twelve layers on either side, 1,024 wide, 512 bytes in and out, 32 at a time: for an "
            "H200.",
            limits=InputLimits(max_tokens=2048, token_multiple=2),
        ),
    ),
)

ATTENTION = (_TRANSFORMER, _SEQ2SEQ)
