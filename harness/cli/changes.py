"""Observed changes around the latest changes of a run's settings, as text lines and JSON."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from harness import words
from harness.analysis.effect import FigureChange, ObservedChange
from harness.errors import LogError
from harness.records.run import SettingsRow
from harness.settings.spec import change_title
from harness.store.folder import RunFolder
from harness.store.reader import LogReader
from harness.supervisor.changes import observe_version

_MOST = 3


class SettingsChange(NamedTuple):
    """A version of the settings, and the observed change from the version before."""

    row: SettingsRow
    observed: ObservedChange


def changes_of(folder: RunFolder, is_over: bool) -> list[SettingsChange]:
    """Return the latest changes of the settings, in order; empty if the log cannot be read. `is_over` is True
    if the run has ended."""
    try:
        with LogReader(folder.log) as reader:
            history = reader.settings_history()
            versions = [at for at in range(1, len(history)) if history[at].is_change]
            return [
                SettingsChange(history[at], observe_version(reader, history, at, is_over))
                for at in versions[-_MOST:]
            ]
    except LogError:
        return []


def change_facts(changes: Sequence[SettingsChange]) -> list[tuple[str, str]]:
    """Return a line for each change."""
    return [
        (
            f"change at step {words.count(change.row.step)}",
            f"{change_title(change.row.changes)}: {change.observed.verdict}",
        )
        for change in changes
    ]


def changes_json(changes: Sequence[SettingsChange]) -> list[dict[str, Any]]:
    """Return the changes for JSON, in base units."""
    return [
        {"step": change.row.step, "changed": change.row.changes}
        | {
            name: value._asdict() | {"ratio": value.ratio} if isinstance(value, FigureChange) else value
            for name, value in change.observed._asdict().items()
        }
        for change in changes
    ]
