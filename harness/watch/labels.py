"""Sentences on changes of settings."""

from collections.abc import Mapping
from typing import Any

from harness.settings.declaration import Effect
from harness.settings.spec import SPECS, value_text


def sentence(before: Mapping[str, Any], changes: Mapping[str, Any]) -> str:
    """Describe the changed values and the rebuilt parts: "Batch size 32 → 48 (loader rebuilt)"."""
    parts = []
    for name, value in changes.items():
        spec = SPECS[name]
        part = f"{spec.label} {value_text(spec, before[name])} → {value_text(spec, value)}"
        parts.append(part if spec.effect is Effect.NEXT_STEP else f"{part} ({spec.effect.value})")
    return "; ".join(parts) + "."
