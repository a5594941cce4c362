"""Sentences on changes of settings."""

from collections.abc import Mapping
from typing import Any

from harness.settings.declaration import Effect
from harness.settings.spec import SPECS, difference_title, value_text


def sentence(before: Mapping[str, Any], changes: Mapping[str, Any]) -> str:
    """Describe the changed values and the rebuilt parts: "Batch size 32 → 48 (loader rebuilt)"."""
    parts = []
    for name, value in changes.items():
        part, effect = _part(name, before, value), SPECS[name].effect if name in SPECS else Effect.NEXT_STEP
        parts.append(part if effect is Effect.NEXT_STEP else f"{part} ({effect.value})")
    return "; ".join(parts) + "."


def sentence_on_values(before: Mapping[str, Any], changes: Mapping[str, Any]) -> str:
    """Describe the changed values alone, where the script changed them and nothing was rebuilt for it."""
    return "; ".join(_part(name, before, value) for name, value in changes.items()) + "."


def _part(name: str, before: Mapping[str, Any], value: Any) -> str:
    if name not in SPECS:  # A setting that a script declares.
        return difference_title(before, {name: value})
    spec = SPECS[name]
    # A log from elsewhere may lack the earlier value.
    earlier = f" {value_text(spec, before[name])}" if name in before else ""
    return f"{spec.label}{earlier} → {value_text(spec, value)}"
