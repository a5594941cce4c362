"""Resolution of selected values into the settings of a run, and the check that model and data fit.

Free of torch, so that the page and the shell can reject a selection before anything is started.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.catalog import ModelSpec, Preset, data, model
from harness.errors import SettingError
from harness.records.data import DataKind
from harness.settings import Settings
from harness.settings.declaration import Need, Parallelism
from harness.settings.injection import check_injection
from harness.settings.profile_steps import parse_profile_at
from harness.settings.spec import SPECS, SettingSpec, parse, spec_of

_PLURAL = {
    DataKind.IMAGE: "images",
    DataKind.TEXT: "text",
    DataKind.TENSORS: "samples of your own",
}

_NO_COMPILE = "torch.compile is not available in a run of several processes; start it with compile off."
_ONE_PROCESS = "DataParallel is for one process, and this run has {}; start it with data_parallel 1."
_NOT_SPLIT = "{} does not work in the threads of DataParallel; set data_parallel to 1 for it."
_ALONE = "fsdp2 shards the model over several processes, and this run has one; start it with --nproc."
_NO_LAYOUT = "Sharded weights keep their layout; start the run with channels_last off, or parallel=ddp."
_NO_SHAPE = "{} is your own model, and 'synthetic' does not know the shape of its samples; name a dataset."


def no_effect_reason(spec: SettingSpec, trained: ModelSpec) -> str | None:
    """Return the reason that the setting has no effect on this model, in one sentence, or None."""
    match spec.needs:
        case Need.IMAGES if trained.accepts is DataKind.TEXT:
            return f"{trained.title} trains on {_PLURAL[trained.accepts]}, which have no such size."
        case Need.TEXT if trained.accepts is DataKind.IMAGE:
            return f"{trained.title} trains on {_PLURAL[trained.accepts]}, not on sequences."
        case Need.CONVOLUTIONS if not trained.can_channels_last:
            return f"{trained.title} has no convolutions over images."
        case Need.CHECKPOINTS if not trained.can_checkpoint:
            return f"{trained.title} cannot checkpoint its activations."
        case Need.SCRIPT:
            return "it is for runs of a script; change learning_rate instead."
        case Need.RANKS:
            return "it is for runs of several processes."
        case _:
            return None


def resolve(values: Mapping[str, Any]) -> Settings:
    """Merge `values` over the preset's settings, the model's default data and the defaults, in this order.

    Raises SettingError for an unknown setting, model, preset or data source, or a value out of bounds.
    `check_fit` checks that model and data fit.
    """
    explicit = {spec_of(name).name: value for name, value in values.items()}
    preliminary = parse(explicit)
    spec = model(preliminary.model)
    if not spec.default_data and "data" not in explicit:
        raise SettingError(
            "data", f"{spec.title} needs samples: --data my_data.py:dataset, or a data source."
        )
    return parse({"data": spec.default_data, **spec.preset(preliminary.preset).settings, **explicit})


def check_fit(settings: Settings) -> None:
    """Raise SettingError, naming the setting, when model, data and their settings do not fit together."""
    spec = model(settings.model)
    preset = spec.preset(settings.preset)
    if spec.missing is not None:
        raise SettingError("model", spec.missing)
    _check_data(spec, settings)
    if spec.accepts is DataKind.IMAGE:
        _check_image_size(spec, preset, settings.image_size)
    elif spec.accepts is DataKind.TEXT:
        _check_sequence_length(spec, preset, settings.sequence_length)
    _check_abilities(spec, settings)
    if settings.data_parallel > 1:
        for name in ("compile", "offload_saved_tensors"):
            if getattr(settings, name):
                raise SettingError(name, _NOT_SPLIT.format(SPECS[name].label))
    check_injection(settings.inject, settings.num_workers)
    parse_profile_at(settings.profile_at)


def check_processes(settings: Settings, ranks: int) -> None:
    """Raise SettingError for settings with which so many processes cannot train one model."""
    is_sharded = settings.parallel is Parallelism.FSDP2
    if ranks == 1 and is_sharded:
        raise SettingError("parallel", _ALONE)
    if ranks > 1 and settings.data_parallel > 1:
        raise SettingError("data_parallel", _ONE_PROCESS.format(ranks))
    if ranks > 1 and settings.compile:
        raise SettingError("compile", _NO_COMPILE)
    if is_sharded and settings.channels_last:
        raise SettingError("channels_last", _NO_LAYOUT)


def _check_data(spec: ModelSpec, settings: Settings) -> None:
    source = data(settings.data)
    if not spec.default_data:
        if source.kind is None:
            raise SettingError("data", _NO_SHAPE.format(spec.title))
    elif source.kind is not None and source.kind is not spec.accepts:
        raise SettingError(
            "data",
            f"{spec.key} trains on {_PLURAL[spec.accepts]}, and {source.key!r} yields "
            f"{_PLURAL[source.kind]}; try data={spec.default_data!r} or 'synthetic'.",
        )
    if not source.needs_path:
        return
    if not settings.data_path:
        raise SettingError("data_path", f"data={source.key!r} needs a folder of your own: set data_path.")
    if not Path(settings.data_path).expanduser().exists():
        raise SettingError(
            "data_path", f"There is no file or folder {settings.data_path!r}; check data_path."
        )


def _check_image_size(spec: ModelSpec, preset: Preset, image_px: int) -> None:
    limits = preset.limits
    if image_px < limits.min_image_px:
        raise SettingError(
            "image_size",
            f"image_size {image_px} is too small for {spec.key} ({preset.name}): it halves the image until "
            f"nothing is left; use at least {limits.min_image_px}.",
        )
    if image_px % limits.image_multiple_px:
        patch = limits.image_multiple_px
        raise SettingError(
            "image_size",
            f"image_size {image_px} cannot be cut into the {patch} px patches of {spec.key} ({preset.name}); "
            f"use a multiple of {patch}, such as {max(1, round(image_px / patch)) * patch}.",
        )


def _check_sequence_length(spec: ModelSpec, preset: Preset, tokens: int) -> None:
    limits = preset.limits
    if limits.max_tokens is not None and tokens > limits.max_tokens:
        raise SettingError(
            "sequence_length",
            f"sequence_length {tokens} is longer than the {limits.max_tokens} positions of {spec.key} "
            f"({preset.name}); use at most {limits.max_tokens} or a larger preset.",
        )
    if tokens % limits.token_multiple:
        raise SettingError(
            "sequence_length",
            f"sequence_length {tokens} cannot be split in halves, one to read and one to predict, as "
            f"{spec.key} needs; use a multiple of {limits.token_multiple}, such as {tokens + 1}.",
        )


def _check_abilities(spec: ModelSpec, settings: Settings) -> None:
    for setting in SPECS.values():
        value = getattr(settings, setting.name)
        is_used = value != setting.default if setting.needs is Need.SCRIPT else value is True
        if not is_used:
            continue
        reason = no_effect_reason(setting, spec)
        if reason is not None:
            raise SettingError(setting.name, f"{setting.name} does nothing for {spec.title}: {reason}")
