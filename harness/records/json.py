"""Nested rows as JSON: named tuples, tuples, mappings, string enums and plain values."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from harness.files.plain_json import json_value

Row = TypeVar("Row", bound=NamedTuple)


def to_json(row: NamedTuple) -> str:
    """Serialize to one line of strict JSON for `from_json`. Raises ValueError for NaN and infinities."""
    return json.dumps(_plain(row), ensure_ascii=False, allow_nan=False)


def from_json(kind: type[Row], text: str, *, ignore_unknown: bool = False) -> Row:
    """Parse the output of `to_json`. A field with a default may be missing, as from an older version. Raises
    ValueError for other missing fields, wrong types and, unless `ignore_unknown`, unknown fields."""
    value = json_value(text)  # The limits of untrusted JSON, which pydantic does not check.
    if ignore_unknown:
        text = json.dumps(_without_unknown(kind, value))
    try:
        row: Row = _adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join([kind.__name__, *map(str, first["loc"])])
        raise ValueError(f"{where} cannot be {str(first['input'])[:80]!r}") from None
    return row


@cache
def _adapter(kind: type[Row]) -> TypeAdapter[Row]:
    return TypeAdapter(kind)


def _without_unknown(kind: Any, value: Any) -> Any:
    """Return `value` without the fields that rows of `kind` do not have."""
    if isinstance(value, dict) and hasattr(kind, "_fields"):
        kinds = get_type_hints(kind)
        return {name: _without_unknown(kinds[name], item) for name, item in value.items() if name in kinds}
    if isinstance(value, list) and get_origin(kind) is tuple:
        return [_without_unknown(get_args(kind)[0], item) for item in value]
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _plain(item) for name, item in value._asdict().items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value
