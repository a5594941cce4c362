"""The settings of a command line: flags override the environment, presets and defaults."""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from harness.catalog.first_run import default_model, default_preset
from harness.catalog.own import absolute_key
from harness.errors import SettingError, UsageError
from harness.settings import Settings
from harness.settings.resolve import resolve
from harness.settings.spec import SPECS, parse_text


def settings_of(arguments: Namespace, environ: Mapping[str, str]) -> Settings:
    """Return the settings of a run from the flags and STEPSCOPE_… variables.

    Raises SettingError; if the value is from the environment, the message names the variable.
    """
    flags = {name: text for name in SPECS if (text := getattr(arguments, name, None)) is not None}
    if arguments.model_word is not None:
        if flags.get("model", arguments.model_word) != arguments.model_word:
            raise UsageError(
                f"Two models are given, {arguments.model_word!r} and {flags['model']!r}; give one."
            )
        flags["model"] = arguments.model_word
    flags |= {name: absolute_key(name, flags[name]) for name in ("model", "data") if name in flags}
    variables = {
        name: environ[spec.variable]
        for name, spec in SPECS.items()
        if name not in flags and spec.variable in environ
    }
    try:
        values = _parsed(variables) | _parsed(flags)
        return resolve(values if "model" in values else _first_run(values, environ))
    except SettingError as error:
        if error.setting in variables:
            raise SettingError(error.setting, f"{SPECS[error.setting].variable}: {error}") from None
        raise


def _first_run(values: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return `values` with the model that suits the data, and without a selected size the one that suits the
    device, for a run without a selected model."""
    values = {"model": default_model(SPECS["model"].default, values.get("data")), **values}
    if "preset" in values:
        return dict(values)
    from harness.device.first_gpu import gpu_memory_bytes  # Only here: it imports the driver's library.

    memory_bytes = gpu_memory_bytes(str(values.get("device", SPECS["device"].default)), environ)
    return {"preset": default_preset(values["model"], memory_bytes), **values}


def parse_assignments(words: list[str]) -> dict[str, Any]:
    """Parse "name=value" words; values of unknown names stay texts, for a script may declare them. Raises
    SettingError, and UsageError for a word of another form."""
    texts: dict[str, str] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise UsageError(f"{word!r} is not of the form name=value, such as batch_size=64.")
        if name in texts:
            raise UsageError(f"{name} is given twice; give it once.")
        texts[name] = text
    settings = {name: text for name, text in texts.items() if name.replace("-", "_").lower() in SPECS}
    return texts | _parsed(settings)


def _parsed(texts: Mapping[str, str]) -> dict[str, Any]:
    return {name: parse_text(name, text) for name, text in texts.items()}
