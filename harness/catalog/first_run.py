"""The model and the size of a run for which neither was selected."""

from collections.abc import Mapping

from harness.catalog.models import model
from harness.catalog.sources import data
from harness.records.data import DataKind

# The default model's second preset is for a GPU with 8 GiB.
_MIN_GPU_BYTES = 8 * 1000**3


# For data that the default model does not train on.
_MODELS: Mapping[DataKind, str] = {DataKind.IMAGE: "cnn", DataKind.TEXT: "transformer"}


def default_model(model_key: str, data_key: str | None) -> str:
    """Return the model for a data source (None: not selected either): the default `model_key` if it trains on
    that data, else another of the catalog. Raises SettingError for an unknown source."""
    kind = None if data_key is None else data(data_key).kind
    if kind is None or model(model_key).accepts is kind:
        return model_key
    return _MODELS.get(kind, model_key)


def default_preset(model_key: str, gpu_memory_bytes: int | None) -> str:
    """Return the size that suits the device: the smallest on the CPU (`gpu_memory_bytes` None) and on a small
    GPU, else the next one, whose peak of some GiB leaves memory for larger batches on every such GPU."""
    presets = model(model_key).presets
    is_large = gpu_memory_bytes is not None and gpu_memory_bytes >= _MIN_GPU_BYTES
    return presets[min(int(is_large), len(presets) - 1)].name
