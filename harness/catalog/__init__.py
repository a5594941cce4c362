"""What can be trained on what: the models, their presets and the data sources, without importing torch."""

from harness.catalog.models import MODELS, model
from harness.catalog.sources import DATA, data
from harness.catalog.spec import DataSpec, Limits, ModelSpec, Preset, load

__all__ = ["DATA", "MODELS", "DataSpec", "Limits", "ModelSpec", "Preset", "data", "load", "model"]
