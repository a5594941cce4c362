"""The essential rows of a run's log, in memory, so that a new log can begin with them."""

import sqlite3
from collections import deque
from collections.abc import Iterable

from harness.records.run import AckRow, ModelSizeRow, RunRow, SettingsRow
from harness.records.script import DeclaredSettingRow, UnavailableSettingRow
from harness.store.inserts import INSERTS, RUN_INSERT, Row, StateChange

# Acknowledgments of commands; a page waits only for the newest.
_MOST_ACKS = 1_000


class RunRecord:
    """The run's row with its last state, its settings with their declarations, and its acknowledgments,
    as far as they were written."""

    def __init__(self, run: RunRow) -> None:
        self.run = run
        self._settings: list[SettingsRow] = []
        self._of_script: dict[tuple[type, str], DeclaredSettingRow | UnavailableSettingRow] = {}
        self._acks: deque[AckRow] = deque(maxlen=_MOST_ACKS)

    def add(self, rows: Iterable[Row], states: Iterable[StateChange]) -> None:
        """Record written rows."""
        for row in rows:
            if isinstance(row, SettingsRow):
                self._settings.append(row)
            elif isinstance(row, AckRow):
                self._acks.append(row)
            elif isinstance(row, DeclaredSettingRow | UnavailableSettingRow):
                self._of_script[type(row), row.name] = row
            elif isinstance(row, ModelSizeRow):
                self.run = self.run._replace(model_parameters=row.model_parameters)
        for change in states:
            self.run = self.run._replace(
                state=change.state, state_message=change.message, ended_unix_ns=change.ended_unix_ns
            )

    def write_to(self, connection: sqlite3.Connection) -> None:
        """Add missing rows to the open log. Raises sqlite3.Error."""
        connection.execute("DELETE FROM run")
        connection.execute(RUN_INSERT, self.run)
        versions = {row[0] for row in connection.execute("SELECT version FROM settings").fetchall()}
        for row in self._settings:
            if row.version not in versions:
                connection.execute(INSERTS[SettingsRow], row)
        for declared in self._of_script.values():
            connection.execute(INSERTS[type(declared)], declared)
        present = set(connection.execute("SELECT command_id, state FROM acks").fetchall())
        for ack in self._acks:
            if (ack.command_id, ack.state) not in present:
                connection.execute(INSERTS[AckRow], ack)
