"""Configurations drawn at random from the space of settings, by a seed. Free of torch."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from harness.catalog import MODELS
from harness.errors import SettingError
from harness.records.data import DataKind
from harness.records.run import AmpMode
from harness.settings.resolve import check_fit, resolve

PRESETS = ("laptop", "workstation", "workstation", "h200")
"""Workstation presets twice: large enough to matter, and done soon."""
_BATCH_SHARES: Mapping[str, Sequence[float]] = {
    "laptop": (0.25, 0.5, 1, 2, 4, 16),
    "workstation": (0.125, 0.25, 0.5, 1, 2),
    "h200": (1 / 32, 1 / 16, 1 / 8, 1 / 4),
}
"""Of the preset's own batch size. A whole h200 batch takes seconds per step without tensor cores."""


def draw(
    seed: int,
    count: int,
    device: str = "cuda",
    presets: Sequence[str] = PRESETS,
    amp_modes: Sequence[AmpMode] = tuple(AmpMode),
) -> list[dict[str, Any]]:
    """`count` different configurations for `settings.resolve.resolve`, each of which fits its model. Models
    whose package is missing are left out. The same arguments give the same list."""
    chance = random.Random(seed)
    models = [key for key, spec in MODELS.items() if spec.missing is None]
    result: list[dict[str, Any]] = []
    while len(result) < count:
        values = _one(chance, chance.choice(models), device, chance.choice(presets), amp_modes)
        if values not in result and _fits(values):
            result.append(values)
    return result


def _one(
    chance: random.Random, model: str, device: str, preset: str, amp_modes: Sequence[AmpMode]
) -> dict[str, Any]:
    """The defaults, with each setting that changes the memory set anew with some probability."""
    spec = MODELS[model]
    own = resolve({"model": model, "preset": preset})
    values: dict[str, Any] = {"model": model, "preset": preset, "device": device, "data": "synthetic"}
    values["batch_size"] = max(1, round(own.batch_size * chance.choice(_BATCH_SHARES[preset])))
    is_image = spec.accepts is DataKind.IMAGE
    choices: dict[str, Sequence[Any]] = {
        "amp": [mode.value for mode in amp_modes],
        "activation_checkpointing": [False, False, True],
        "grad_accumulation": [1, 1, 2, 4],
        "optimizer": ["adamw", "adam", "sgd"],
        "optimizer_impl": ["auto", "auto", "loop", "foreach"],
        "set_to_none": [True, True, False],
        "matmul_precision": ["highest", "high"],
        "channels_last": [False, is_image],
        "sequence_length": [own.sequence_length, own.sequence_length // 2],
        "image_size": [own.image_size, own.image_size // 2],
    }
    del choices["sequence_length" if is_image else "image_size"]
    for name, options in choices.items():
        values[name] = chance.choice(options)
    return values


def _fits(values: Mapping[str, Any]) -> bool:
    try:
        check_fit(resolve(values))
    except SettingError:
        return False
    return True


def label(values: Mapping[str, Any]) -> str:
    """A configuration in words: the model and what differs from its preset."""
    own = resolve({"model": values["model"], "preset": values["preset"], "data": "synthetic"})
    changed = [
        f"{name}={value}"
        for name, value in values.items()
        if name not in ("model", "preset", "device", "data") and value != getattr(own, name)
    ]
    return " ".join([values["model"], values["preset"], *changed])
