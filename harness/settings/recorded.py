"""The settings in a request or a log: all settings for a model of the catalog, some for a person's script."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from harness.catalog.own import model_and_size
from harness.errors import SettingError
from harness.files.plain_json import json_object
from harness.settings import Settings
from harness.settings.spec import SPECS, parse

# Every run of the catalog records it, and no run of a script does.
_MODEL = "model"


class RecordedSettings(NamedTuple):
    """The settings of a run, of which there are `names`."""

    # The fields that are not in `names` have their default, which says nothing about the run.
    values: Settings
    # In the order of the declarations.
    names: tuple[str, ...]
    # Values of settings that the script itself declares.
    declared: Mapping[str, Any]

    @property
    def complete(self) -> Settings | None:
        """All settings, of a run of the catalog; None for a script's run, which has only some."""
        return self.values if _MODEL in self.names else None

    @property
    def title(self) -> str | None:
        """Model and size: "cnn laptop"; None for a script's run."""
        return None if self.complete is None else model_and_size(self.values.model, self.values.preset)

    def get(self, name: str) -> Any:
        """Return the value of a setting; None if the run does not have it."""
        return getattr(self.values, name) if name in self.names else None

    def to_json(self) -> dict[str, Any]:
        """Return the values that the run has, as in JSON."""
        values = self.values.model_dump(mode="json")
        return {name: values[name] for name in self.names} | dict(self.declared)


@lru_cache(maxsize=1024)
def read_recorded(text: str) -> RecordedSettings | None:
    """Parse the settings in a request or a log; None if this version cannot read them, or there are none."""
    try:
        values = json_object(text)
        if _MODEL in values:
            return RecordedSettings(parse(values), tuple(SPECS), {})
        names = tuple(name for name in SPECS if name in values)
        declared = {name: value for name, value in values.items() if name not in SPECS}
        settings = parse({name: values[name] for name in names})
    except (SettingError, ValueError):
        return None
    return RecordedSettings(settings, names, declared) if names else None
