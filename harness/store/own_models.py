"""A person's own models that the dashboard offers, registered in the shell by the owner of the home."""

import json
from pathlib import Path
from typing import NamedTuple

from harness.catalog.own import parse_own
from harness.errors import HomeError, UsageError
from harness.files.plain_json import json_value
from harness.files.regular import read_whole, write_private
from harness.store.home import Home

FILE = "models.json"
_MOST_BYTES = 1 << 20


class OwnEntry(NamedTuple):
    """A registered model, "file.py:function", and its dataset: one of a file too, or of the catalog."""

    model: str
    data: str


def read_own_models(home: Home) -> list[OwnEntry]:
    """Return the registered models, oldest first. Raises HomeError when their list cannot be read."""
    path = home.path / FILE
    try:
        values = json_value(read_whole(path, _MOST_BYTES).decode("utf-8"))
        entries = [OwnEntry(str(value["model"]), str(value["data"])) for value in values]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise HomeError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, TypeError, KeyError):
        raise HomeError(f"{path} is not a list of models; delete it and register them again.") from None
    return [entry for entry in entries if parse_own(entry.model) is not None]


def add_own_model(home: Home, entry: OwnEntry) -> None:
    """Register a model; the same model again replaces its dataset. Raises HomeError."""
    others = [other for other in read_own_models(home) if other.model != entry.model]
    _write(home, [*others, entry])


def remove_own_model(home: Home, model: str) -> None:
    """Remove a registered model. Raises UsageError when it is not registered, HomeError."""
    entries = read_own_models(home)
    rest = [entry for entry in entries if entry.model != model]
    if len(rest) == len(entries):
        names = ", ".join(entry.model for entry in entries) or "none"
        raise UsageError(f"{model!r} is not registered; registered: {names}.")
    _write(home, rest)


def _write(home: Home, entries: list[OwnEntry]) -> None:
    home.check_writable()
    path: Path = home.path / FILE
    try:
        write_private(path, json.dumps([entry._asdict() for entry in entries], indent=1) + "\n")
    except OSError as error:
        raise HomeError(f"{path} cannot be written: {error.strerror}.") from None
