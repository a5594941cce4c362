"""Nested rows as JSON: named tuples, tuples, mappings, string enums and plain values."""

import json
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from harness.plain_json import json_value

Row = TypeVar("Row", bound=NamedTuple)


def to_json(row: NamedTuple) -> str:
    """Serialize to one line of strict JSON for `from_json`. Raises ValueError for NaN and infinities."""
    return json.dumps(_plain(row), ensure_ascii=False, allow_nan=False)


def from_json(kind: type[Row], text: str) -> Row:
    """Parse the output of `to_json`. A field with a default may be missing, as from an older version. Raises
    ValueError for other missing fields, unknown fields and wrong types."""
    row: Row = _read(kind, json_value(text), kind.__name__)
    return row


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _plain(item) for name, item in value._asdict().items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def _read(kind: Any, value: Any, where: str) -> Any:
    """Convert `value`, from JSON, to the type `kind`."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return None if value is None else _read(inner[0], value, where)
    if origin is tuple and isinstance(value, list):
        kinds = inner[:1] * len(value) if inner[1:] == (...,) else inner
        return tuple(_read(k, item, where) for k, item in zip(kinds, value, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, dict):
        return value
    if isinstance(kind, type) and issubclass(kind, tuple) and isinstance(value, dict):
        hints = typing.get_type_hints(kind)
        required = hints.keys() - getattr(kind, "_field_defaults", {}).keys()
        if required <= value.keys() <= hints.keys():
            return kind(**{name: _read(hints[name], item, f"{where}.{name}") for name, item in value.items()})
    elif isinstance(kind, type) and issubclass(kind, StrEnum) and isinstance(value, str):
        return kind(value)
    elif type(value) is kind:
        return value
    raise ValueError(f"{where} cannot be {str(value)[:80]!r}")
