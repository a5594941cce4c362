"""The shapes of the catalogue's entries: a model, its presets, a data source.

A spec names its builder as a string ("module:function"), loaded only in the training process, so that the
dashboard and `stepscope models` never pay for torch.
"""

import difflib
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from harness.errors import SettingError
from harness.records import DataKind


class Limits(NamedTuple):
    """What a size of a model can take. Images are square; text samples are counted in tokens."""

    min_image_px: int = 1
    # Image sizes must be a multiple of this: the patch.
    image_multiple_px: int = 1
    # The longest sample: the number of learned positions. None: any length.
    max_tokens: int | None = None
    # Sample lengths must be a multiple of this.
    token_multiple: int = 1


class Preset(NamedTuple):
    """A size of a model, with the settings that make sense at that size.

    `params` go to the builder; `settings` are defaults for `harness.config.Settings`, under what the person
    asks for. `parameters` is the number of trainable parameters at these settings, on the data they name or
    else the model's default data (tested).
    """

    name: str
    title: str
    params: Mapping[str, int]
    settings: Mapping[str, Any]
    parameters: int
    # The expected scale, for a person: what it is shaped like and what hardware it is meant for.
    scale: str
    limits: Limits = Limits()


class ModelSpec(NamedTuple):
    """A model that can be trained. `builder` is "module:function", called as `build(params, shape)`."""

    key: str
    title: str
    summary: str
    accepts: DataKind
    default_data: str
    builder: str
    presets: tuple[Preset, ...]
    # A module that must be installed for this model, from the extra `hf`.
    requires: str | None = None
    can_checkpoint: bool = True
    can_channels_last: bool = False
    is_recurrent: bool = False
    # Whether torch takes its time steps one by one on the CPU.
    is_unrolled: bool = False

    @property
    def missing(self) -> str | None:
        """Why this model cannot be used here, or None."""
        if self.requires is None or find_spec(self.requires) is not None:
            return None
        return f"{self.title} needs the package {self.requires!r}: pip install 'stepscope[hf]'"

    def preset(self, name: str) -> Preset:
        """The preset called `name`; raises SettingError."""
        for preset in self.presets:
            if preset.name == name:
                return preset
        known = ", ".join(p.name for p in self.presets)
        raise SettingError("preset", f"{self.key} has no preset {name!r}; choose one of: {known}.")


class DataSpec(NamedTuple):
    """A source of samples. `opener` and `shape` are "module:function", called with the settings: they open
    the source, and return the shape of its samples without opening it; see `harness.data.source`."""

    key: str
    title: str
    summary: str
    # None: the source takes the shape the model asks for (synthetic) or finds it out (folder).
    kind: DataKind | None
    opener: str
    shape: str
    needs_path: bool = False


def load(target: str) -> Any:
    """Import what a "module:attribute" string names."""
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


def nearest(key: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown `key`: the name probably meant, or all there are."""
    near = difflib.get_close_matches(key, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else f"choose one of: {', '.join(known)}."
