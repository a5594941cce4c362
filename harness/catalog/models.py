"""Every model that can be trained, by key."""

from collections.abc import Mapping

from harness.catalog.spec import ModelSpec, nearest
from harness.catalog.vision import VISION
from harness.errors import SettingError

MODELS: Mapping[str, ModelSpec] = {spec.key: spec for spec in VISION}


def model(key: str) -> ModelSpec:
    """The model called `key`; raises SettingError with the nearest name."""
    if key in MODELS:
        return MODELS[key]
    raise SettingError("model", f"There is no model {key!r}; {nearest(key, MODELS)}")
