"""Language models of the `transformers` library, with their presets."""

from harness.catalog.spec import InputLimits, ModelSpec, Preset
from harness.records.run import DataKind

_GPT2 = ModelSpec(
    key="hf-gpt2",
    title="GPT-2 (transformers)",
    summary="GPT-2 of the transformers library, over bytes, with random weights.",
    accepts=DataKind.TEXT,
    default_data="stdlib-text",
    builder="harness.models.hf:build_gpt2",
    requires="transformers",
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
            scale="Six layers, 512 wide (DistilGPT-2's depth), on 256 bytes: for a GPU with 8 GiB.",
            limits=InputLimits(max_tokens=1024),
        ),
        Preset(
            name="h200",
            title="H200",
            params={"context": 1024, "width": 1024, "heads": 16, "layers": 24},
            settings={"batch_size": 16, "sequence_length": 1024, "learning_rate": 0.0003},
            parameters=303_622_144,
            scale="GPT-2 medium without its large vocabulary (24 layers, 1,024 wide), 16 texts of 1,024 "
            "bytes at a time: for an H200.",
            limits=InputLimits(max_tokens=1024),
        ),
    ),
)

_BERT = ModelSpec(
    key="hf-bert",
    title="BERT (transformers)",
    summary="BERT of the transformers library, predicting masked bytes, with random weights.",
    accepts=DataKind.TEXT,
    default_data="stdlib-text",
    builder="harness.models.hf:build_bert",
    requires="transformers",
    presets=(
        Preset(
            name="laptop",
            title="Laptop",
            params={"context": 512, "width": 64, "heads": 4, "layers": 2},
            settings={"batch_size": 16, "sequence_length": 64, "learning_rate": 0.003},
            parameters=153_985,
            scale="Two layers, 64 wide, on 64 bytes: about ten milliseconds per step on two CPU cores.",
            limits=InputLimits(max_tokens=512),
        ),
        Preset(
            name="workstation",
            title="Workstation",
            params={"context": 512, "width": 768, "heads": 12, "layers": 12},
            settings={"batch_size": 16, "sequence_length": 256, "learning_rate": 0.0002},
            parameters=86_240_513,
            scale="BERT-base without its large vocabulary (12 layers, 768 wide), on 256 bytes: for a GPU "
            "with 16 GiB.",
            limits=InputLimits(max_tokens=512),
        ),
        Preset(
            name="h200",
            title="H200",
            params={"context": 512, "width": 1024, "heads": 16, "layers": 24},
            settings={"batch_size": 64, "sequence_length": 512, "learning_rate": 0.0001},
            parameters=304_152_833,
            scale="BERT-large without its large vocabulary (24 layers, 1,024 wide), 64 texts of 512 "
            "bytes at a time: for an H200.",
            limits=InputLimits(max_tokens=512),
        ),
    ),
)

_LLAMA = ModelSpec(
    key="hf-llama",
    title="Llama (transformers)",
    summary="A Llama-style decoder (rotary positions, grouped heads, SwiGLU) over bytes, with random "
    "weights.",
    accepts=DataKind.TEXT,
    default_data="stdlib-text",
    builder="harness.models.hf:build_llama",
    requires="transformers",
    presets=(
        Preset(
            name="laptop",
            title="Laptop",
            params={"context": 512, "width": 64, "inner": 192, "heads": 4, "key_heads": 2, "layers": 2},
            settings={"batch_size": 16, "sequence_length": 64, "learning_rate": 0.003},
            parameters=131_392,
            scale="Two layers, 64 wide, two query heads per key head, on 64 bytes: about ten "
            "milliseconds per step on two CPU cores.",
            limits=InputLimits(max_tokens=512),
        ),
        Preset(
            name="workstation",
            title="Workstation",
            params={"context": 2048, "width": 768, "inner": 2048, "heads": 12, "key_heads": 4, "layers": 12},
            settings={"batch_size": 16, "sequence_length": 512, "learning_rate": 0.0003},
            parameters=75_909_888,
            scale="Twelve layers, 768 wide, on 512 bytes: for a GPU with 16 GiB.",
            limits=InputLimits(max_tokens=2048),
        ),
        Preset(
            name="h200",
            title="H200",
            params={"context": 2048, "width": 2048, "inner": 5632, "heads": 32, "key_heads": 4, "layers": 22},
            settings={"batch_size": 4, "sequence_length": 2048, "learning_rate": 0.0002},
            parameters=970_024_960,
            scale="TinyLlama-1.1B without its large vocabulary (22 layers, 2,048 wide), four texts of "
            "2,048 bytes at a time: for an H200.",
            limits=InputLimits(max_tokens=2048),
        ),
    ),
)

HF_TEXT = (_GPT2, _BERT, _LLAMA)
