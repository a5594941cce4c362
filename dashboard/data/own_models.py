"""The models that a new run may train: those of the catalog, and those that the owner registered."""

from collections.abc import Mapping

from dashboard.data.runs import home
from harness.catalog import DATA, MODELS, DataSpec, ModelSpec, data
from harness.catalog.own import own_model, parse_own
from harness.errors import HomeError, SettingError
from harness.store.own_models import OwnEntry, read_own_models


def models() -> Mapping[str, ModelSpec]:
    """Return all models by key; of the registered ones those whose file exists, with their dataset."""
    offered = dict(MODELS)
    for entry in _entries():
        own, spec = parse_own(entry.model), own_model(entry.model)
        if own is not None and spec is not None and own.file.is_file():
            offered[entry.model] = spec._replace(default_data=entry.data)
    return offered


def sources(model: ModelSpec) -> list[DataSpec]:
    """Return the data sources that fit `model`."""
    if model.key in MODELS:
        return [spec for spec in DATA.values() if spec.kind in (None, model.accepts)]
    return [data(model.default_data)]


def check_offered(model: str, source: str) -> None:
    """Raise SettingError for a model or a dataset of a file that the owner has not registered: a browser
    names no files."""
    offered = models()
    if model not in offered:
        raise SettingError("model", f"{model!r} is not offered here; register it: stepscope models --add …")
    if source not in {spec.key for spec in sources(offered[model])}:
        raise SettingError("data", f"{source!r} is not offered for {model}; choose one of the list.")


def _entries() -> list[OwnEntry]:
    try:
        return read_own_models(home())
    except HomeError:
        return []
