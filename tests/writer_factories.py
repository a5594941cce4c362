"""A writer of a log, what feeds it, and a disk that is full when a test says so."""

import sqlite3
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from harness.records.run import StepRow
from harness.store.writer import LogWriter
from tests.store_factories import a_run

SOON_S = 10.0


class Source:
    """Feeds a writer with whatever was put in."""

    def __init__(self) -> None:
        self._steps: deque[StepRow] = deque()
        self.error: RuntimeError | None = None

    def add(self, rows: Sequence[StepRow]) -> None:
        self._steps.extend(rows)

    def count(self) -> int:
        """Return how many rows wait to be fetched."""
        return len(self._steps)

    def __call__(self) -> list[StepRow]:
        if self.error is not None:
            raise self.error
        result = []
        while self._steps:
            result.append(self._steps.popleft())
        return result


def a_writer(path: Path, source: Source, max_pending_steps: int = 20_000) -> LogWriter:
    return LogWriter(path, a_run(), source, lambda: 42, 0.005, max_pending_steps)


def connection_of(writer: LogWriter) -> sqlite3.Connection:
    connection: sqlite3.Connection | None = writer._keeper.appender._connection
    assert connection is not None
    return connection


def fill_disk(writer: LogWriter) -> None:
    """From now on the file may not grow: SQLite itself says that the disk is full."""
    connection_of(writer).execute("PRAGMA max_page_count = 1")


def free_disk(writer: LogWriter) -> None:
    connection_of(writer).execute("PRAGMA max_page_count = 1000000")


_PRELUDE = """
import logging, resource, sys, time
from pathlib import Path
from harness.store.reader import LogReader
from harness.store.writer import LogWriter
from tests.store_factories import a_run, an_event, steps
path = Path(sys.argv[1])
fed = []
def feed():
    found = list(fed)
    del fed[: len(found)]
    return found
said = []
class Ear(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
logging.getLogger().addHandler(Ear())
writer = LogWriter(path, a_run(), feed, lambda: 42, 0.005)
"""


def run_script(script: str, path: Path) -> "subprocess.CompletedProcess[str]":
    """A program of its own that has a `writer` of the log at `path` and goes on with `script`."""
    return subprocess.run(
        [sys.executable, "-c", _PRELUDE + script, str(path)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=60,
    )
