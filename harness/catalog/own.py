"""A person's own model and dataset, named "file.py:attribute" where the catalog has a key. Free of torch.

The file is imported by the training process and by the prediction, never by the dashboard or the shell.
"""

import hashlib
import os
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from harness.catalog.spec import DataSpec, ModelSpec, Preset
from harness.errors import SettingError
from harness.records.data import DataKind

_SUFFIX = ".py"


class OwnObject(NamedTuple):
    """An attribute of a Python file."""

    file: Path
    attribute: str

    @property
    def key(self) -> str:
        """Its name as the value of a setting."""
        return f"{self.file}:{self.attribute}"

    @property
    def title(self) -> str:
        """Its name without the folders."""
        return f"{self.file.name}:{self.attribute}"

    def absolute(self) -> "OwnObject":
        """Return it with its absolute path, which has no `..`: one file has one name."""
        return self._replace(file=Path(os.path.abspath(self.file.expanduser())))


def parse_own(key: str) -> OwnObject | None:
    """Return the object that `key` names; None when it is no "file.py:attribute"."""
    file, colon, attribute = key.rpartition(":")
    if not colon or not file.endswith(_SUFFIX) or not attribute.isidentifier():
        return None
    return OwnObject(Path(file), attribute)


def model_and_size(model: str, preset: str) -> str:
    """Return "cnn laptop"; of a person's own model, which has one size, the name without folders."""
    own = parse_own(model)
    return f"{model} {preset}" if own is None else own.title


def is_own(key: str) -> bool:
    """Return whether `key` names a person's own model or dataset."""
    return parse_own(key) is not None


def absolute_key(setting: str, key: str) -> str:
    """Return `key` with an absolute path; other keys unchanged. Raises SettingError when the file does not
    exist."""
    own = parse_own(key)
    if own is None:
        return key
    absolute = own.absolute()
    if not absolute.file.is_file():
        place = "" if own.file.is_absolute() else f" in {Path.cwd()}"
        raise SettingError(setting, f"There is no file {str(own.file)!r}{place}; check --{setting}.")
    return absolute.key


def own_model(key: str) -> ModelSpec | None:
    """Return the description of a person's own model; None when `key` names none."""
    own = parse_own(key)
    if own is None:
        return None
    summary = f"{own.attribute} of {own.file.name}."
    preset = Preset("laptop", "As written", {}, {}, None, summary)
    return ModelSpec(
        key,
        own.title,
        summary,
        accepts=DataKind.TENSORS,
        default_data="",
        builder="harness.models.own:build",
        presets=(preset,),
        can_checkpoint=False,
        can_channels_last=True,
    )


def own_data(key: str) -> DataSpec | None:
    """Return the description of a person's own dataset; None when `key` names none."""
    own = parse_own(key)
    if own is None:
        return None
    return DataSpec(
        key,
        own.title,
        f"{own.attribute} of {own.file.name}.",
        kind=DataKind.TENSORS,
        opener="harness.data.own:open_source",
        shape="harness.data.own:shape_of",
    )


def digest(*keys: str) -> str | None:
    """Return a digest of the content of the files that `keys` name; None when none is a person's own."""
    objects = [own for key in keys if (own := parse_own(key)) is not None]
    if not objects:
        return None
    return ",".join(_digest(own.file, _stamp(own.file)) for own in objects)


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=256)
def _digest(file: Path, stamp: tuple[int, int] | None) -> str:
    return "missing" if stamp is None else hashlib.sha256(file.read_bytes()).hexdigest()[:16]
