"""The worth of AMP, TF32 and channels_last on the h200 presets, on data that lies on the device."""

from collections.abc import Mapping
from typing import Any

from harness.catalog import MODELS
from harness.device.find import open_device
from tests.gpu.comparing import QUICK, Plan, compare
from tests.gpu.context import Context

MODELS_IN_ORDER = (
    "transformer",
    "resnet",
    "hf-vit",
    "hf-bert",
    "hf-gpt2",
    "hf-llama",
    "cnn",
    "hf-resnet",
    "seq2seq",
    "mlp",
    "lstm",
    "gru",
    "rnn",
)
"""All of the catalog; those that most people train first."""
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "AMP bf16": {"amp": "bf16"},
    "AMP fp16": {"amp": "fp16"},
    "TF32": {"matmul_precision": "high"},
    "channels_last": {"channels_last": True},
    "channels_last + AMP bf16": {"channels_last": True, "amp": "bf16"},
}
PLAN = Plan(seconds=3.0, most_s=15.0)


def measure(context: Context) -> None:
    """Each model's h200 preset."""
    compare_models(context, ("mlp",) if context.is_quick else MODELS_IN_ORDER, VARIANTS, PLAN)


def compare_models(
    context: Context,
    models: tuple[str, ...],
    variants: Mapping[str, Mapping[str, Any]],
    plan: Plan,
    from_host: bool = False,
    **values: object,
) -> None:
    """Compare the variants on the models' h200 presets; with a quick context on the smallest ones."""
    device = open_device(context.device)
    for model in context.pending(models):
        if (missing := MODELS[model].missing) is not None:
            context.put(model, {"problem": missing})
            continue
        preset = "laptop" if context.is_quick else "h200"
        chosen = {
            name: changes
            for name, changes in variants.items()
            if MODELS[model].can_channels_last or not changes.get("channels_last")
        }
        result = compare(
            device,
            {"model": model, "preset": preset, **values},
            chosen,
            QUICK if context.is_quick else plan,
            context.seed,
            from_host,
        )
        context.put(model, result | {"preset_batch_size": _batch_size(model, preset)})


def _batch_size(model: str, preset: str) -> int:
    return int(MODELS[model].preset(preset).settings["batch_size"])
