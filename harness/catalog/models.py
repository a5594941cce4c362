"""All models, by key."""

from collections.abc import Mapping

from harness.catalog.attention import ATTENTION
from harness.catalog.hf_text import HF_TEXT
from harness.catalog.hf_vision import HF_VISION
from harness.catalog.recurrent import RECURRENT
from harness.catalog.residual import RESNET
from harness.catalog.spec import ModelSpec, nearest
from harness.catalog.vision import VISION
from harness.errors import SettingError

MODELS: Mapping[str, ModelSpec] = {
    spec.key: spec for spec in (*VISION, RESNET, *RECURRENT, *ATTENTION, *HF_TEXT, *HF_VISION)
}


def model(key: str) -> ModelSpec:
    """Return the model `key`; raises SettingError with the nearest name."""
    if key in MODELS:
        return MODELS[key]
    raise SettingError("model", f"There is no model {key!r}; {nearest(key, MODELS)}")
