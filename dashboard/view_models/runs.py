"""The table of the Runs page: rows of text from the entries of a list, and the settings in which they
differ."""

from collections.abc import Mapping, Sequence
from typing import Any

from dashboard.components import state_words
from harness import words
from harness.analysis.run_list import UNREADABLE, differing_settings, duration_ns
from harness.catalog import model
from harness.errors import SettingError
from harness.records.entry import RunEntry
from harness.records.run import RunState
from harness.settings.resolve import no_effect_reason
from harness.settings.spec import SPECS, text_of_value

_LONGEST_CELL = 80
_LONGEST_MESSAGE = 1_000
_MOST_SETTINGS = 8
# A little more than the table's font takes; the padding of both sides of a cell; the width of a long text.
_CHARACTER_PX, _PADDING_PX, _WIDEST_PX = 7, 20, 400
# Names that a setting's column must not take.
_COLUMNS = frozenset(
    {
        "Name", "State", "Model", "Device", "Tags", "Steps", "Step time", "Throughput", "Peak", "Loss",
        "Started", "Duration", "Note", "Status",
    }
)  # fmt: skip


def table_rows(entries: Sequence[RunEntry], now_unix_ns: int) -> list[dict[str, str]]:
    """Return a row of text for each run. Settings that differ among these runs, tags and notes are columns
    only where there are any, the settings after the figures."""
    entries = [run._replace(settings=_effective(run.settings)) for run in entries]
    settings = differing_settings(entries)[:_MOST_SETTINGS]
    has_tags, has_notes = any(run.tags for run in entries), any(run.note for run in entries)
    rows = []
    for run in entries:
        row = {
            "Name": run.name,
            "State": _state(run),
            "Model": _cell(run.subject),
            "Device": _cell(run.device_name),
        }
        if has_tags:
            row["Tags"] = ", ".join(run.tags)
        row |= _figures(run, now_unix_ns)
        row |= {_heading(name): _setting(name, run) for name in settings}
        if has_notes:
            row["Note"] = words.clip(run.note, _LONGEST_MESSAGE)
        row["Status"] = words.clip(run.message, _LONGEST_MESSAGE)
        rows.append(row)
    return rows


def column_widths(rows: Sequence[Mapping[str, str]], longest_heading: int = 80) -> dict[str, int]:
    """Return the width in pixels at which a column shows the longest of its cells, and its heading up to so
    many characters. The browser would measure the first ten rows alone, without those much longer than the
    others, and cut off the first digits of a number in a later one."""
    longest = {
        name: max(min(len(name), longest_heading), *(len(row[name]) for row in rows))
        for name in (rows[0] if rows else ())
    }
    return {name: min(_CHARACTER_PX * size + _PADDING_PX, _WIDEST_PX) for name, size in longest.items()}


def _figures(run: RunEntry, now_unix_ns: int) -> dict[str, str]:
    lasted_ns = duration_ns(run, now_unix_ns)
    return {
        "Steps": words.count(run.steps),
        "Step time": words.milliseconds(run.step_ns),
        "Throughput": words.rate(run.samples_per_s),
        "Peak": words.size(run.peak_allocated_bytes),
        "Loss": words.figure(run.loss),
        "Started": words.moment(run.started_unix_ns or run.created_unix_ns),
        # A run that ended as it started, as one imported without a step, has none.
        "Duration": words.duration(lasted_ns or None),
    }


def _state(run: RunEntry) -> str:
    if run.problem is not None:
        return UNREADABLE
    origin = " · simulated" if run.is_simulated else " · imported" if run.imported is not None else ""
    return state_words(RunState(run.state)) + origin


def _cell(text: str | None) -> str:
    return words.NOT_AVAILABLE if text is None else words.clip(text, _LONGEST_CELL)


def _heading(name: str) -> str:
    label = SPECS[name].label if name in SPECS else words.clip(name, _LONGEST_CELL)
    return f"{label} (setting)" if label in _COLUMNS else label


def _effective(settings: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Leave out the settings without an effect on the model, as a sequence's length on one of images."""
    key = None if settings is None else settings.get("model")
    if settings is None or not isinstance(key, str):
        return settings
    try:
        trained = model(key)
    except SettingError:  # A model of one's own that is not registered any more.
        return settings
    return {
        name: value
        for name, value in settings.items()
        if name not in SPECS or no_effect_reason(SPECS[name], trained) is None
    }


def _setting(name: str, run: RunEntry) -> str:
    """Return the value of a setting; "n/a" for a run without it."""
    value: Any = None if run.settings is None else run.settings.get(name)
    if run.settings is None or name not in run.settings:
        return words.NOT_AVAILABLE
    return words.clip(text_of_value(name, value), _LONGEST_CELL)
