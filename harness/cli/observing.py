"""What differs around the newest changes of a run's settings, as lines for people and for programs."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from harness import words
from harness.analysis.effect import FigureChange, ObservedChange
from harness.config import SPECS, value_text
from harness.errors import LogError
from harness.records import SettingsRow
from harness.store.folder import RunFolder
from harness.store.reader import LogReader
from harness.supervisor.observing import observe_version

_MOST = 3


class SettingsChange(NamedTuple):
    """A version of the settings, and what differs from the version before."""

    row: SettingsRow
    observed: ObservedChange


def changes_of(folder: RunFolder, is_over: bool) -> list[SettingsChange]:
    """The newest changes of the settings, in order; none where the log cannot be read. `is_over`: the run
    has ended."""
    try:
        with LogReader(folder.log) as reader:
            history = reader.settings_history()
            return [
                SettingsChange(history[at], observe_version(reader, history, at, is_over))
                for at in range(max(1, len(history) - _MOST), len(history))
            ]
    except LogError:
        return []


def change_facts(changes: Sequence[SettingsChange]) -> list[tuple[str, str]]:
    """One line for each."""
    return [
        (f"change at step {words.count(change.row.step)}", f"{_title(change.row)}: {change.observed.verdict}")
        for change in changes
    ]


def changes_json(changes: Sequence[SettingsChange]) -> list[dict[str, Any]]:
    """In base units."""
    return [
        {"step": change.row.step, "changed": json.loads(change.row.changed)}
        | {
            name: value._asdict() | {"ratio": value.ratio} if isinstance(value, FigureChange) else value
            for name, value in change.observed._asdict().items()
        }
        for change in changes
    ]


def _title(row: SettingsRow) -> str:
    """The values that changed: "batch 64, pinned on"."""
    changed = [(SPECS[name], value) for name, value in json.loads(row.changed).items() if name in SPECS]
    return ", ".join(f"{spec.short or spec.label} {value_text(spec, value)}" for spec, value in changed)
