"""Counts of the work of a Live page tick, independent of the machine and its load."""

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from types import FrameType
from typing import Any, NamedTuple

from dashboard import canvas, state
from dashboard.data import runs
from dashboard.data.figures import Figures, figures, read_token
from dashboard.view_models import live as live_view
from harness.store import querying
from harness.store.folder import RunFolder
from harness.store.opening import Opened, open_reading


class TickWork(NamedTuple):
    """One tick: calls of functions (Python's and C's), queries of the log, rows that they returned,
    instructions of SQLite's virtual machine, and bytes of the packed chart."""

    calls: int
    queries: int
    rows: int
    vm_steps: int
    sent_bytes: int


def tick(folder: RunFolder, view: runs.RunView, before: Figures | None) -> tuple[Figures, int]:
    """Run a tick without Streamlit; return its data and the number of bytes of its chart."""
    read_token(folder)
    read = figures(folder, view.device, None, None, False, before)
    drawn = live_view.draw(view, read, state.ChartWindow.ALL, False, datetime(2026, 1, 2, 3, 4, 5))
    return read, len(canvas.pack_figure(drawn.chart))


def count_queries(folder: RunFolder, view: runs.RunView, before: Figures | None) -> tuple[Figures, TickWork]:
    """Take a tick and count what its queries do; `calls` is left at 0."""
    with _counted_queries() as counts:
        read, sent_bytes = tick(folder, view, before)
    return read, TickWork(0, counts.queries, counts.rows, counts.vm_steps, sent_bytes)


def count_calls(folder: RunFolder, view: runs.RunView, before: Figures | None) -> tuple[Figures, int]:
    """Take a tick and count the calls in it."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        read, _ = tick(folder, view, before)
    finally:
        sys.setprofile(None)
    return read, calls


class _Counts:
    queries = 0
    rows = 0
    vm_steps = 0


class _Cursor(sqlite3.Cursor):
    counts: _Counts

    def execute(self, *arguments: Any) -> "_Cursor":
        self.counts.queries += 1
        self.connection.set_progress_handler(self._note_vm_step, 1)
        super().execute(*arguments)
        return self

    def __next__(self) -> Any:
        row = super().__next__()
        self.counts.rows += 1
        return row

    def fetchmany(self, size: int | None = 1) -> list[Any]:
        rows = super().fetchmany(size)
        self.counts.rows += len(rows)
        return rows

    def _note_vm_step(self) -> int:
        self.counts.vm_steps += 1
        return 0


@contextmanager
def _counted_queries() -> Iterator[_Counts]:
    counts = _Counts()
    cursors = type("CountedCursor", (_Cursor,), {"counts": counts})

    class Connection:
        """A connection whose cursors count; a progress handler of its own would replace theirs."""

        def __init__(self, connection: sqlite3.Connection) -> None:
            self._connection = connection

        def cursor(self) -> Any:
            return self._connection.cursor(cursors)

        def set_progress_handler(self, *_arguments: Any) -> None:
            pass

        def __getattr__(self, name: str) -> Any:
            return getattr(self._connection, name)

    def opened(path: Any) -> Opened:
        result = open_reading(path)
        return result._replace(connection=Connection(result.connection))  # type: ignore[arg-type]

    querying.open_reading, retained = opened, querying.open_reading  # type: ignore[attr-defined]
    try:
        yield counts
    finally:
        querying.open_reading = retained  # type: ignore[attr-defined]
