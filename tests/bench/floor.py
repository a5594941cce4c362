"""The least that recording every step can cost: a deque, emptied by a thread that writes it to SQLite."""

import sqlite3
import threading
from collections import deque
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Self

from torch import nn

PERIOD_S = 0.25
"""As often as Stepscope's own writer looks."""
_VALUES = 12


class Floor:
    """A `StepLog` with nothing to it. A context manager."""

    def __init__(self, folder: Path) -> None:
        """The file lies in `folder`, which is to be empty."""
        self._path = folder / "floor.sqlite3"
        self._waiting: deque[tuple[float, ...]] = deque()
        # Leaves a row for the thread: the number of the step and its twelve values.
        self.put = self._waiting.append
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def step(self, model: nn.Module) -> AbstractContextManager[object] | None:
        """Nothing is entered around a step."""
        return None

    def log(self, step: int, values: dict[str, float]) -> None:
        """Leave the values for the thread."""
        self.put((step, *values.values()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        connection = sqlite3.connect(self._path, isolation_level=None)
        columns = ", ".join(f"value_{number} REAL" for number in range(_VALUES))
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"CREATE TABLE steps (step INTEGER, {columns})")
        insert = f"INSERT INTO steps VALUES ({', '.join('?' * (_VALUES + 1))})"
        waiting = self._waiting
        while not self._over.wait(PERIOD_S) or waiting:
            rows = [waiting.popleft() for _ in range(len(waiting))]
            connection.execute("BEGIN")
            connection.executemany(insert, rows)
            connection.execute("COMMIT")
        connection.close()
