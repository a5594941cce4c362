"""Makes typed rows of what a query returns, and refuses values that the row's fields cannot have.

SQLite enforces the types of STRICT tables when it writes, not when it reads: a crafted or damaged file can
hold any value in any column. What passes here needs no further check: numbers are numbers, texts can be
shown, and JSON can be parsed.
"""

import types
import typing
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import Any, NamedTuple, TypeVar

from harness.flops_records import FlopsRow
from harness.memory_records import OomReportRow
from harness.plain_json import json_object, json_value
from harness.records import RunRow, SettingsRow
from harness.words import clip

Row = TypeVar("Row", bound=NamedTuple)
_Signature = tuple[type, ...]

MOST_ROWS = 1_000_000
# All texts of one query. Two thousand events with their details take 1 MB.
MOST_TEXT_CHARACTERS = 32 << 20
# A longer one that is no JSON is cut: nothing on a page is that long.
_LONGEST_TEXT = 20_000
_JSON_OBJECTS: dict[type, tuple[str, ...]] = {
    RunRow: ("settings", "device", "versions"),
    SettingsRow: ("settings", "changed"),
    OomReportRow: ("report",),
}
_JSON_LISTS: dict[type, tuple[str, ...]] = {FlopsRow: ("uncounted",)}
# So many combinations of types are remembered per kind of row; a run's own rows have a handful.
_MOST_SIGNATURES = 1_000
# Texts of up to this length are remembered once they were parsed: most events have the same few details.
_SHORT_JSON = 2_000


class ValuesError(ValueError):
    """A row holds what it cannot hold; the message says what, for a person."""


class _Checks:
    """What is known of one kind of row: which types its fields may have, and where its texts are."""

    def __init__(self, row: type[NamedTuple]) -> None:
        hints = typing.get_type_hints(row)
        self.fields: tuple[str, ...] = row._fields
        self.allowed = [_types_of(hints[name]) for name in self.fields]
        self.objects = [self.fields.index(name) for name in _JSON_OBJECTS.get(row, ())]
        self.lists = [self.fields.index(name) for name in _JSON_LISTS.get(row, ())]
        self.texts: dict[_Signature, tuple[int, ...]] = {}

    def learn(self, signature: _Signature) -> tuple[int, ...]:
        """The places of the texts in rows of these types. Raises ValuesError for types that do not fit."""
        if len(signature) != len(self.fields):
            raise ValuesError(f"a row has {len(signature)} values instead of {len(self.fields)}")
        for name, kind, allowed in zip(self.fields, signature, self.allowed, strict=True):
            if kind not in allowed:
                raise ValuesError(f"{name} holds a value of the kind {kind.__name__}")
        if len(self.texts) >= _MOST_SIGNATURES:
            self.texts.clear()
        places = tuple(at for at, kind in enumerate(signature) if kind is str)
        self.texts[signature] = places
        return places

    def check_json(self, values: tuple[Any, ...]) -> None:
        """Raises ValuesError when a field that is JSON holds anything else."""
        for at in self.objects:
            text = values[at]
            if not (_is_short_object(text) if len(text) <= _SHORT_JSON else _is_object(text)):
                raise ValuesError(f"{self.fields[at]} is no JSON object")
        for at in self.lists:
            if not _is_list(values[at]):
                raise ValuesError(f"{self.fields[at]} is no JSON list")

    def clipped(self, values: tuple[Any, ...], texts: tuple[int, ...]) -> tuple[Any, ...]:
        """The values with long texts cut, as far as they are no JSON."""
        cut = {at: clip(values[at], _LONGEST_TEXT) for at in texts if at not in (*self.objects, *self.lists)}
        return tuple(cut.get(at, value) for at, value in enumerate(values))


def to_rows(row: type[Row], found: Iterable[tuple[Any, ...]]) -> list[Row]:
    """A row of the type `row` for each tuple of `found`. Raises ValuesError at the first that is none."""
    checks, rows, characters = _checks_of(row), [], 0
    for values in found:
        signature = tuple(map(type, values))
        places = checks.texts.get(signature)
        if places is None:
            places = checks.learn(signature)
        if places:
            lengths = [len(values[at]) for at in places]
            characters += sum(lengths)
            if characters > MOST_TEXT_CHARACTERS:
                raise ValuesError(f"its texts have more than {MOST_TEXT_CHARACTERS:,} characters")
            checks.check_json(values)
            if max(lengths) > _LONGEST_TEXT:
                values = checks.clipped(values, places)
        rows.append(row._make(values))
        if len(rows) > MOST_ROWS:
            raise ValuesError(f"it has more than {MOST_ROWS:,} rows where a run has far fewer")
    return rows


def to_numbers(found: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The tuples of `found`, all of numbers or None. Raises ValuesError for any other value."""
    rows, known = [], set()
    for values in found:
        signature = frozenset(map(type, values))
        if signature not in known:
            if not signature <= {int, float, types.NoneType}:
                raise ValuesError("a number was expected where it holds text or bytes")
            known.add(signature)
        rows.append(values)
        if len(rows) > MOST_ROWS:
            raise ValuesError(f"it has more than {MOST_ROWS:,} rows where a run has far fewer")
    return rows


@cache
def _checks_of(row: type[NamedTuple]) -> _Checks:
    return _Checks(row)


def _types_of(hint: Any) -> frozenset[type]:
    """The types of values that a field may have; a column of floats may hold whole numbers."""
    kinds = set(typing.get_args(hint)) if typing.get_origin(hint) is types.UnionType else {hint}
    return frozenset(kinds | {int} if float in kinds else kinds)


def _is_object(text: str) -> bool:
    try:
        json_object(text)
    except ValueError:
        return False
    return True


_is_short_object = lru_cache(maxsize=4096)(_is_object)


def _is_list(text: str) -> bool:
    try:
        return isinstance(json_value(text), list)
    except ValueError:
        return False
