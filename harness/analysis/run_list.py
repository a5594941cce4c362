"""Selection and order of the entries in a list of runs, and the settings in which they differ."""

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from harness.records.entry import RunEntry
from harness.records.run import RunState

UNREADABLE = "unreadable"
# The values of a filter by state.
STATES = (*(state.value for state in RunState), UNREADABLE)
# In the list's column of models.
_SHOWN_AS_MODEL = frozenset({"model", "preset"})


class RunFilter(NamedTuple):
    """Criteria of a list of runs; an empty one admits every run. A run must meet all criteria: have one of
    the states, models and devices, all of the tags, and every word of the search text."""

    states: Collection[str] = ()
    models: Collection[str] = ()
    devices: Collection[str] = ()
    tags: Collection[str] = ()
    search: str = ""

    def select(self, entries: Sequence[RunEntry]) -> list[RunEntry]:
        """Return the entries that meet the criteria, in their order."""
        return [entry for entry in entries if self.admits(entry)]

    def admits(self, entry: RunEntry) -> bool:
        """Return whether the entry meets the criteria."""
        return (
            (not self.states or state_of(entry) in self.states)
            and (not self.models or model_of(entry) in self.models)
            and (not self.devices or entry.device_name in self.devices)
            and set(self.tags) <= set(entry.tags)
            and _has_words(entry, self.search)
        )


def state_of(entry: RunEntry) -> str:
    """Return the state for a list: "unreadable" if the log cannot be read."""
    return UNREADABLE if entry.problem is not None else entry.state


def model_of(entry: RunEntry) -> str | None:
    """Return the model's key, or the command of a script; None if unknown."""
    if entry.script is not None:
        return str(entry.script.get("command"))
    model = None if entry.settings is None else entry.settings.get("model")
    return model if isinstance(model, str) else None


def _has_words(entry: RunEntry, search: str) -> bool:
    words = search.casefold().split()
    if not words:
        return True
    texts = (entry.name, entry.run_id, entry.subject, entry.note, entry.device_name, *entry.tags)
    text = "\n".join(text for text in texts if text).casefold()
    return all(word in text for word in words)


class SortKey(StrEnum):
    """The figures by which a list of runs can be sorted."""

    STARTED = "started"
    NAME = "name"
    STATE = "state"
    MODEL = "model"
    STEPS = "steps"
    STEP_TIME = "step time"
    THROUGHPUT = "throughput"
    PEAK = "peak"
    LOSS = "loss"
    DURATION = "duration"


_VALUES: Mapping[SortKey, Callable[[RunEntry], Any]] = {
    SortKey.STARTED: lambda entry: entry.started_unix_ns or entry.created_unix_ns,
    SortKey.NAME: lambda entry: entry.name.casefold(),
    SortKey.STATE: state_of,
    SortKey.MODEL: lambda entry: entry.subject,
    SortKey.STEPS: lambda entry: entry.steps,
    SortKey.STEP_TIME: lambda entry: entry.step_ns,
    SortKey.THROUGHPUT: lambda entry: entry.samples_per_s,
    SortKey.PEAK: lambda entry: entry.peak_allocated_bytes,
    SortKey.LOSS: lambda entry: entry.loss,
    SortKey.DURATION: lambda entry: duration_ns(entry),
}


def sort_entries(entries: Sequence[RunEntry], key: SortKey, *, is_descending: bool = True) -> list[RunEntry]:
    """Sort entries by a figure; those without it, or with NaN, are last in both directions."""
    valued = [(_VALUES[key](entry), entry) for entry in entries]
    present = [(value, entry) for value, entry in valued if not _is_missing(value)]
    present.sort(key=lambda pair: pair[0], reverse=is_descending)
    return [entry for _, entry in present] + [entry for value, entry in valued if _is_missing(value)]


def _is_missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def duration_ns(entry: RunEntry, now_unix_ns: int | None = None) -> int | None:
    """Return the duration of a run; of an active one until `now_unix_ns`. None if unknown, as where the clock
    was set back by more than the run took."""
    end_unix_ns = entry.ended_unix_ns if RunState(entry.state).is_over else now_unix_ns
    if entry.started_unix_ns is None or end_unix_ns is None:
        return None
    duration = end_unix_ns - entry.started_unix_ns
    return duration if duration >= 0 else None


def differing_settings(entries: Sequence[RunEntry]) -> list[str]:
    """Return the names of settings that have different values in these runs, in the order of the first run
    that has them. A run without a setting does not count; model and size are not among them."""
    values: dict[str, set[str]] = {}
    for entry in entries:
        for name, value in (entry.settings or {}).items():
            values.setdefault(name, set()).add(json.dumps(value, sort_keys=True))
    return [name for name, distinct in values.items() if len(distinct) > 1 and name not in _SHOWN_AS_MODEL]
