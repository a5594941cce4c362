"""Conversion of query results to typed rows, with validation of every value.

SQLite enforces the types of STRICT tables on writes, not on reads: a crafted or damaged file may have any
value in any column. Validated rows need no further check: numbers are numbers, texts are printable, JSON can
be parsed, and texts that readers convert to an enum are members of it.
"""

import types
import typing
from collections.abc import Iterable
from enum import StrEnum
from functools import cache, lru_cache
from typing import Any, NamedTuple, TypeVar

from harness.files.plain_json import json_object, json_value
from harness.records.flops import FlopsRow
from harness.records.memory import LeakRow, LeakSeries, LeakVerdict, OomReportRow
from harness.records.queue import QueueRow, QueueState
from harness.records.run import AckRow, CommandState, RunRow, SettingsRow
from harness.records.script import DeclaredSettingRow
from harness.words import clip

Row = TypeVar("Row", bound=NamedTuple)
_Signature = tuple[type, ...]

MOST_ROWS = 1_000_000
# Limit for all texts of one query. Two thousand events with their details take 1 MB.
MOST_TEXT_CHARACTERS = 32 << 20
# Longer texts that are not JSON are cut: no page shows one that long.
_LONGEST_TEXT = 20_000
_JSON_OBJECTS: dict[type, tuple[str, ...]] = {
    RunRow: ("settings", "device", "versions"),
    SettingsRow: ("settings", "changed"),
    OomReportRow: ("report",),
    DeclaredSettingRow: ("declaration",),
    QueueRow: ("settings",),
}
_CLOSED_SETS: dict[type, dict[str, type[StrEnum]]] = {
    AckRow: {"state": CommandState},
    LeakRow: {"series": LeakSeries, "verdict": LeakVerdict},
    QueueRow: {"state": QueueState},
}
_JSON_LISTS: dict[type, tuple[str, ...]] = {FlopsRow: ("uncounted",)}
# Cached combinations of types per kind of row; the rows of a run have a handful.
_MOST_SIGNATURES = 1_000
# Texts of up to this length are cached after validation: most events have the same few details.
_SHORT_JSON = 2_000


class ValuesError(ValueError):
    """A row has an invalid value, which the message names."""


class _Checks:
    """The validation of one kind of row: the allowed types of its fields, and the positions of its texts."""

    def __init__(self, row: type[NamedTuple]) -> None:
        hints = typing.get_type_hints(row)
        self.fields: tuple[str, ...] = row._fields
        self.allowed = [_types_of(hints[name]) for name in self.fields]
        self.objects = [self.fields.index(name) for name in _JSON_OBJECTS.get(row, ())]
        self.lists = [self.fields.index(name) for name in _JSON_LISTS.get(row, ())]
        closed = _CLOSED_SETS.get(row, {}).items()
        self.closed = [(self.fields.index(name), frozenset(members)) for name, members in closed]
        self.texts: dict[_Signature, tuple[int, ...]] = {}

    def add_signature(self, signature: _Signature) -> tuple[int, ...]:
        """Return the positions of the texts in rows of these types. Raises ValuesError for other types."""
        if len(signature) != len(self.fields):
            raise ValuesError(f"a row has {len(signature)} values instead of {len(self.fields)}")
        for name, kind, allowed in zip(self.fields, signature, self.allowed, strict=True):
            if kind not in allowed:
                raise ValuesError(f"{name} has a value of the kind {kind.__name__}")
        if len(self.texts) >= _MOST_SIGNATURES:
            self.texts.clear()
        places = tuple(at for at, kind in enumerate(signature) if kind is str)
        self.texts[signature] = places
        return places

    def check_json(self, values: tuple[Any, ...]) -> None:
        """Raise ValuesError when a JSON field contains anything else."""
        for at in self.objects:
            text = values[at]
            if not (_is_short_object(text) if len(text) <= _SHORT_JSON else _is_object(text)):
                raise ValuesError(f"{self.fields[at]} is no JSON object")
        for at in self.lists:
            if not _is_list(values[at]):
                raise ValuesError(f"{self.fields[at]} is no JSON list")

    def check_closed(self, values: tuple[Any, ...]) -> None:
        """Raise ValuesError when a text is not of its closed set."""
        for at, members in self.closed:
            if values[at] not in members:
                raise ValuesError(f"{self.fields[at]} has the unknown value {clip(values[at], 40)!r}")

    def clipped(self, values: tuple[Any, ...], texts: tuple[int, ...]) -> tuple[Any, ...]:
        """Return the values, with long texts cut unless they are JSON."""
        cut = {at: clip(values[at], _LONGEST_TEXT) for at in texts if at not in (*self.objects, *self.lists)}
        return tuple(cut.get(at, value) for at, value in enumerate(values))


def to_rows(row: type[Row], tuples: Iterable[tuple[Any, ...]]) -> list[Row]:
    """Convert each tuple to a row of the type `row`. Raises ValuesError at the first invalid one."""
    checks, rows, characters = _checks_of(row), [], 0
    for values in tuples:
        signature = tuple(map(type, values))
        places = checks.texts.get(signature)
        if places is None:
            places = checks.add_signature(signature)
        if places:
            lengths = [len(values[at]) for at in places]
            characters += sum(lengths)
            if characters > MOST_TEXT_CHARACTERS:
                raise ValuesError(f"its texts have more than {MOST_TEXT_CHARACTERS:,} characters")
            checks.check_json(values)
            checks.check_closed(values)
            if max(lengths) > _LONGEST_TEXT:
                values = checks.clipped(values, places)
        rows.append(row._make(values))
        if len(rows) > MOST_ROWS:
            raise ValuesError(f"it has more than {MOST_ROWS:,} rows where a run has far fewer")
    return rows


def to_numbers(tuples: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the tuples, which contain numbers or None. Raises ValuesError for any other value."""
    rows, signatures = [], set()
    for values in tuples:
        signature = frozenset(map(type, values))
        if signature not in signatures:
            if not signature <= {int, float, types.NoneType}:
                raise ValuesError("text or bytes where a number was expected")
            signatures.add(signature)
        rows.append(values)
        if len(rows) > MOST_ROWS:
            raise ValuesError(f"it has more than {MOST_ROWS:,} rows where a run has far fewer")
    return rows


@cache
def _checks_of(row: type[NamedTuple]) -> _Checks:
    return _Checks(row)


def _types_of(hint: Any) -> frozenset[type]:
    """Return the allowed types of a field; a column of floats may contain integers."""
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
