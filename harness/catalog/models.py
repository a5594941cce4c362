"""All models, by key: a table of their presets.

A row of `_presets` is a size: the parameters of the builder (named by the columns), the settings, the number
of trainable parameters, the limits of its inputs, and a description of its shape and hardware.
"""

from collections.abc import Mapping
from typing import Any

from harness.catalog.own import own_model
from harness.catalog.spec import InputLimits, ModelSpec, Preset, nearest
from harness.errors import SettingError
from harness.records.data import DataKind

# Smallest first; every model has all three.
_SIZES = (("laptop", "Laptop"), ("workstation", "Workstation"), ("h200", "H200"))
_Row = tuple[tuple[int, ...], Mapping[str, Any], int, InputLimits, str]


def _presets(columns: str, *rows: _Row) -> tuple[Preset, ...]:
    names = columns.split()
    return tuple(
        Preset(name, title, dict(zip(names, values, strict=True)), settings, parameters, scale, limits)
        for (name, title), (values, settings, parameters, limits, scale) in zip(_SIZES, rows, strict=True)
    )


def _text(batch_size: int, sequence_length: int, learning_rate: float) -> Mapping[str, Any]:
    return {"batch_size": batch_size, "sequence_length": sequence_length, "learning_rate": learning_rate}


def _images(
    batch_size: int,
    image_size: int,
    learning_rate: float,
    *,
    data: str | None = None,
    num_workers: int | None = None,
    data_samples: int | None = None,
) -> Mapping[str, Any]:
    settings = {
        "data": data,
        "batch_size": batch_size,
        "image_size": image_size,
        "num_workers": num_workers,
        "data_samples": data_samples,
        "learning_rate": learning_rate,
    }
    return {name: value for name, value in settings.items() if value is not None}


def _px(least: int = 1, multiple: int = 1) -> InputLimits:
    return InputLimits(min_image_px=least, image_multiple_px=multiple)


def _tokens(most: int, multiple: int = 1) -> InputLimits:
    return InputLimits(max_tokens=most, token_multiple=multiple)


_ANY = InputLimits()

# fmt: off
_MODELS = (
    ModelSpec(
        "mlp", "MLP", "Fully connected layers on the flattened image: the smallest model.",
        DataKind.IMAGE, "digits", "harness.models.mlp:build",
        _presets(
            "width layers",
            ((128, 2), _images(32, 16, 0.001), 50_698, _ANY,
             "Two hidden layers of 128 on 16 px digits: about a millisecond per step on two CPU cores."),
            ((2048, 4), _images(256, 32, 0.0003), 14_708_746, _ANY,
             "Four hidden layers of 2,048 on 32 px digits: for any GPU with 2 GiB."),
            ((16384, 8), _images(4096, 64, 0.0001), 1_946_451_978, _ANY,
             "Eight hidden layers of 16,384, matrix products large enough to fill an H200; with AdamW "
             "about 29 GiB of weights, gradients and optimizer state."),
        ),
    ),
    ModelSpec(
        "cnn", "CNN",
        "The classic convolution, pool, convolution, pool, fully connected network, at any image size.",
        DataKind.IMAGE, "digits", "harness.models.cnn:build",
        _presets(
            "channels hidden",
            ((16, 128), _images(32, 16, 0.001), 71_754, _px(4),
             "16 and 32 channels on 16 px digits: a few milliseconds per step on two CPU cores."),
            ((64, 512), _images(256, 32, 0.0005), 4_274_442, _px(4),
             "64 and 128 channels on 32 px digits: for any GPU with 2 GiB."),
            ((128, 1024), _images(512, 128, 0.0001), 268_743_178, _px(4),
             "128 and 256 channels on 128 px digits: over ten GiB of activations, for an H200."),
        ),
        can_channels_last=True,
    ),
    ModelSpec(
        "resnet", "ResNet", "A residual network of bottleneck blocks, up to ResNet-50.",
        DataKind.IMAGE, "shapes", "harness.models.resnet:build",
        _presets(
            "width stage1 stage2 stage3 stage4 large_stem",
            ((8, 1, 1, 1, 1, 0), _images(16, 32, 0.003), 128_974, _px(16),
             "One bottleneck block per stage, 8 channels wide, on 32 px shapes: some tens of milliseconds "
             "per step on two CPU cores."),
            ((64, 2, 2, 2, 2, 1), _images(64, 128, 0.001, num_workers=2), 13_958_470, _px(64),
             "ResNet-26 (two blocks per stage) on 128 px shapes: for a GPU with 8 GiB."),
            ((64, 3, 4, 6, 3, 1), _images(256, 224, 0.001, num_workers=8, data_samples=1_000_000),
             23_520_326, _px(64),
             "ResNet-50 on 224 px shapes, 256 at a time: about 20 GiB of activations, for an H200."),
        ),
        can_channels_last=True,
    ),
    ModelSpec(
        "rnn", "RNN", "Elman's plain recurrent network, predicting text byte by byte.",
        DataKind.TEXT, "stdlib-text", "harness.models.recurrent:build_rnn",
        _presets(
            "width layers",
            ((96, 1), _text(16, 64, 0.002), 68_032, _ANY,
             "One layer of 96 on 64 bytes: about ten milliseconds per step on two CPU cores."),
            ((512, 2), _text(64, 256, 0.001), 1_313_024, _ANY,
             "Two layers of 512 on 256 bytes: for any GPU with 4 GiB."),
            ((2048, 4), _text(256, 1024, 0.0003), 34_619_648, _ANY,
             "Four layers of 2,048 on 1,024 bytes: about 20 GiB of activations, for an H200."),
        ),
    ),
    ModelSpec(
        "lstm", "LSTM", "Long short-term memory, predicting text byte by byte.",
        DataKind.TEXT, "stdlib-text", "harness.models.recurrent:build_lstm",
        _presets(
            "width layers",
            ((96, 1), _text(16, 64, 0.005), 123_904, _ANY,
             "One layer of 96 on 64 bytes: about ten milliseconds per step on two CPU cores."),
            ((512, 2), _text(64, 256, 0.001), 4_464_896, _ANY,
             "Two layers of 512 on 256 bytes: for any GPU with 4 GiB."),
            ((2048, 4), _text(256, 1024, 0.0003), 135_332_096, _ANY,
             "Four layers of 2,048 on 1,024 bytes: tens of GiB of activations, for an H200."),
        ),
    ),
    ModelSpec(
        "gru", "GRU", "Gated recurrent units, predicting text byte by byte.",
        DataKind.TEXT, "stdlib-text", "harness.models.recurrent:build_gru",
        _presets(
            "width layers",
            ((96, 1), _text(16, 64, 0.005), 105_280, _ANY,
             "One layer of 96 on 64 bytes: about ten milliseconds per step on two CPU cores."),
            ((512, 2), _text(64, 256, 0.001), 3_414_272, _ANY,
             "Two layers of 512 on 256 bytes: for any GPU with 4 GiB."),
            ((2048, 4), _text(256, 1024, 0.0003), 101_761_280, _ANY,
             "Four layers of 2,048 on 1,024 bytes: tens of GiB of activations, for an H200."),
        ),
    ),
    ModelSpec(
        "transformer", "Transformer",
        "A decoder that predicts text byte by byte, up to the size of GPT-2 small.",
        DataKind.TEXT, "stdlib-text", "harness.models.transformer:build",
        _presets(
            "context width heads layers",
            ((256, 128, 4, 4), _text(16, 64, 0.003), 858_880, _tokens(256),
             "Four layers, 128 wide, on 64 bytes: some tens of milliseconds per step on two CPU cores."),
            ((1024, 512, 8, 6), _text(32, 256, 0.0006), 19_570_688, _tokens(1024),
             "Six layers, 512 wide, on 256 bytes: for a GPU with 8 GiB."),
            ((1024, 768, 12, 12), _text(64, 1024, 0.0006), 86_039_040, _tokens(1024),
             "GPT-2 small without its large vocabulary (12 layers, 768 wide, 12 heads), 64 texts of 1,024 "
             "bytes at a time: for an H200."),
        ),
    ),
    ModelSpec(
        "seq2seq", "Encoder-decoder",
        "A transformer that reads the first half of a text and predicts the second.",
        DataKind.TEXT, "stdlib-text", "harness.models.seq2seq:build",
        _presets(
            "context width heads layers",
            ((128, 64, 4, 2), _text(16, 64, 0.003), 258_304, _tokens(256, multiple=2),
             "Two layers on either side, 64 wide, 32 bytes in and 32 out: about ten milliseconds per step "
             "on two CPU cores."),
            ((512, 512, 8, 6), _text(32, 256, 0.0006), 44_533_760, _tokens(1024, multiple=2),
             "Six layers on either side, 512 wide (the first transformer's base size), 128 bytes in and "
             "out: for a GPU with 8 GiB."),
            ((1024, 1024, 16, 12), _text(32, 1024, 0.0003), 354_029_568, _tokens(2048, multiple=2),
             "Twelve layers on either side, 1,024 wide, 512 bytes in and out, 32 at a time: for an H200."),
        ),
    ),
    ModelSpec(
        "hf-gpt2", "GPT-2 (transformers)",
        "GPT-2 of the transformers library, over bytes, with random weights.",
        DataKind.TEXT, "stdlib-text", "harness.models.hf:build_gpt2",
        _presets(
            "context width heads layers",
            ((256, 64, 4, 2), _text(16, 64, 0.003), 132_864, _tokens(256),
             "Two layers, 64 wide, on 64 bytes: about ten milliseconds per step on two CPU cores."),
            ((1024, 512, 8, 6), _text(32, 256, 0.0006), 19_570_688, _tokens(1024),
             "Six layers, 512 wide (DistilGPT-2's depth), on 256 bytes: for a GPU with 8 GiB."),
            ((1024, 1024, 16, 24), _text(16, 1024, 0.0003), 303_622_144, _tokens(1024),
             "GPT-2 medium without its large vocabulary (24 layers, 1,024 wide), 16 texts of 1,024 bytes "
             "at a time: for an H200."),
        ),
        requires="transformers",
    ),
    ModelSpec(
        "hf-bert", "BERT (transformers)",
        "BERT of the transformers library, predicting masked bytes, with random weights.",
        DataKind.TEXT, "stdlib-text", "harness.models.hf:build_bert",
        _presets(
            "context width heads layers",
            ((512, 64, 4, 2), _text(16, 64, 0.003), 153_985, _tokens(512),
             "Two layers, 64 wide, on 64 bytes: about ten milliseconds per step on two CPU cores."),
            ((512, 768, 12, 12), _text(16, 256, 0.0002), 86_240_513, _tokens(512),
             "BERT-base without its large vocabulary (12 layers, 768 wide), on 256 bytes: for a GPU with "
             "16 GiB."),
            ((512, 1024, 16, 24), _text(64, 512, 0.0001), 304_152_833, _tokens(512),
             "BERT-large without its large vocabulary (24 layers, 1,024 wide), 64 texts of 512 bytes at a "
             "time: for an H200."),
        ),
        requires="transformers",
    ),
    ModelSpec(
        "hf-llama", "Llama (transformers)",
        "A Llama-style decoder (rotary positions, grouped heads, SwiGLU) over bytes, with random weights.",
        DataKind.TEXT, "stdlib-text", "harness.models.hf:build_llama",
        _presets(
            "context width inner heads key_heads layers",
            ((512, 64, 192, 4, 2, 2), _text(16, 64, 0.003), 131_392, _tokens(512),
             "Two layers, 64 wide, two query heads per key head, on 64 bytes: about ten milliseconds per "
             "step on two CPU cores."),
            ((2048, 768, 2048, 12, 4, 12), _text(16, 512, 0.0003), 75_909_888, _tokens(2048),
             "Twelve layers, 768 wide, on 512 bytes: for a GPU with 16 GiB."),
            ((2048, 2048, 5632, 32, 4, 22), _text(4, 2048, 0.0002), 970_024_960, _tokens(2048),
             "TinyLlama-1.1B without its large vocabulary (22 layers, 2,048 wide), four texts of 2,048 "
             "bytes at a time: for an H200."),
        ),
        requires="transformers",
    ),
    ModelSpec(
        "hf-vit", "ViT (transformers)",
        "The vision transformer of the transformers library, with random weights.",
        DataKind.IMAGE, "shapes", "harness.models.hf:build_vit",
        _presets(
            "patch width heads layers",
            ((4, 64, 4, 2), _images(16, 32, 0.001, data="digits"), 106_058, _px(multiple=4),
             "Two layers, 64 wide, on 4 px patches of 32 px digits: some tens of milliseconds per step on "
             "two CPU cores."),
            ((16, 384, 6, 12), _images(64, 224, 0.0003, num_workers=2), 21_667_974, _px(multiple=16),
             "ViT-S/16 on 224 px shapes: for a GPU with 8 GiB."),
            ((16, 768, 12, 12), _images(256, 224, 0.0003, num_workers=8, data_samples=1_000_000),
             85_803_270, _px(multiple=16),
             "ViT-B/16 on 224 px shapes, 256 at a time: for an H200."),
        ),
        requires="transformers",
    ),
    ModelSpec(
        "hf-resnet", "ResNet (transformers)",
        "The residual network of the transformers library, with random weights.",
        DataKind.IMAGE, "shapes", "harness.models.hf:build_resnet",
        _presets(
            "stem width stage1 stage2 stage3 stage4",
            ((16, 32, 1, 1, 1, 1), _images(16, 64, 0.001), 131_446, _px(64),
             "One bottleneck block per stage on 64 px shapes: some tens of milliseconds per step on two "
             "CPU cores."),
            ((64, 256, 2, 2, 2, 2), _images(64, 128, 0.001, num_workers=2), 13_958_470, _px(64),
             "ResNet-26 on 128 px shapes: for a GPU with 8 GiB."),
            ((64, 256, 3, 4, 6, 3), _images(256, 224, 0.001, num_workers=8, data_samples=1_000_000),
             23_520_326, _px(64),
             "ResNet-50 on 224 px shapes, 256 at a time: about 20 GiB of activations, for an H200."),
        ),
        requires="transformers", can_checkpoint=False, can_channels_last=True,
    ),
)
# fmt: on

MODELS: Mapping[str, ModelSpec] = {spec.key: spec for spec in _MODELS}


def model(key: str) -> ModelSpec:
    """Return the model `key`, which may be a person's own; raises SettingError with the nearest name."""
    if key in MODELS:
        return MODELS[key]
    if (own := own_model(key)) is not None:
        return own
    raise SettingError("model", f"There is no model {key!r}; {nearest(key, MODELS)}")
