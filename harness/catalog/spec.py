"""The types of the catalog's entries: a model, its presets, a data source.

A spec names its builder as a string ("module:function") that only the training process imports, so that the
dashboard and `stepscope models` never load torch.
"""

import difflib
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from harness.catalog.packages import obstacle
from harness.errors import SettingError
from harness.records.data import DataKind


class InputLimits(NamedTuple):
    """The limits of a preset's inputs. Images are square; text samples are measured in tokens."""

    min_image_px: int = 1
    # Image sizes must be a multiple of this: the patch.
    image_multiple_px: int = 1
    # The longest sample: the number of learned positions. None: any length.
    max_tokens: int | None = None
    # Sample lengths must be a multiple of this.
    token_multiple: int = 1


class Preset(NamedTuple):
    """A size of a model, with suitable settings.

    `params` go to the builder; `settings` are defaults, which the user's own values override. `parameters` is
    the number of trainable parameters at these settings, on the data they name or else the model's default
    data (tested).
    """

    name: str
    title: str
    params: Mapping[str, int]
    settings: Mapping[str, Any]
    # None: unknown, of a person's own model.
    parameters: int | None
    # A description of its shape and of the hardware it is meant for.
    scale: str
    limits: InputLimits = InputLimits()


class ModelSpec(NamedTuple):
    """A model. `builder` is "module:function", called as `build(params, shape)`."""

    key: str
    title: str
    summary: str
    # TENSORS: any (a person's own model).
    accepts: DataKind
    default_data: str
    builder: str
    presets: tuple[Preset, ...]
    # A package that this model needs, from the extra `hf`.
    requires: str | None = None
    can_checkpoint: bool = True
    can_channels_last: bool = False

    @property
    def missing(self) -> str | None:
        """The reason that this model is unavailable, or None."""
        reason = None if self.requires is None else obstacle(self.requires)
        return None if reason is None else f"{self.title} {reason}"

    def preset(self, name: str) -> Preset:
        """Return the preset `name`; raises SettingError."""
        for preset in self.presets:
            if preset.name == name:
                return preset
        names = ", ".join(p.name for p in self.presets)
        raise SettingError("preset", f"{self.key} has no preset {name!r}; choose one of: {names}.")


class DataSpec(NamedTuple):
    """A data source. `opener` and `shape` are "module:function", called with the settings: one opens the
    source, the other returns the shape of its samples without opening it; see `harness.data.source`."""

    key: str
    title: str
    summary: str
    # None: the source yields what the model accepts (synthetic).
    kind: DataKind | None
    opener: str
    shape: str
    needs_path: bool = False


def load(target: str) -> Any:
    """Import the object that a "module:attribute" string names."""
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


def nearest(key: str, keys: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown `key`: the nearest name, or all names."""
    near = difflib.get_close_matches(key, list(keys), n=1)
    return f"did you mean {near[0]!r}?" if near else f"choose one of: {', '.join(keys)}."
