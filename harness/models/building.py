"""Construction of the model that the settings name, for the samples of the data source."""

from harness.catalog import load, model
from harness.catalog.own import is_own
from harness.models.base import LossModel
from harness.models.own import build as build_own
from harness.models.own import import_function
from harness.records.data import DataShape
from harness.settings import Settings


def build_model(settings: Settings, shape: DataShape) -> LossModel:
    """Build an initialized model on torch's default device, float32, in training mode.

    Weights follow torch's global seed. Raises SettingError when the model or its preset is unknown.
    """
    if is_own(settings.model):
        return build_own(settings)
    spec = model(settings.model)
    built: LossModel = load(spec.builder)(spec.preset(settings.preset).params, shape)
    return built


def import_code(settings: Settings) -> None:
    """Import what `build_model` needs. Raises SettingError as it does."""
    if is_own(settings.model):
        import_function(settings)
    else:
        load(model(settings.model).builder)
