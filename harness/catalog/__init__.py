"""The catalog of models, their presets and data sources; free of torch."""

from harness.catalog.models import MODELS, model
from harness.catalog.sources import DATA, data
from harness.catalog.spec import DataSpec, InputLimits, ModelSpec, Preset, load

__all__ = ["DATA", "MODELS", "DataSpec", "InputLimits", "ModelSpec", "Preset", "data", "load", "model"]
