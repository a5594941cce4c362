"""Rows on their way to the log's writer, and how writing goes: what there is before the writer."""

import time
from collections import deque
from typing import Any

from harness.store.inserts import Row

_SLOW_S = 1.0


class Outbox:
    """Holds rows until the writer's thread takes them. `put` may be called from any thread.

    Attributes:
        items: rows and requests, in order.
        failures: writes in a row that failed.
        was_slow: whether the newest write took long.
        began_s: when the write under way began; None: there is none.
    """

    def __init__(self) -> None:
        self.items: deque[Any] = deque()
        self.failures = 0
        self.was_slow = False
        self.began_s: float | None = None

    def put(self, row: Row) -> None:
        """Leave a row to be written at the next poll. Never waits."""
        self.items.append(row)

    def is_behind(self) -> bool:
        """Return whether rows pile up in memory because the log is not written."""
        return self.failures > 0 or self.was_slow or self.is_slow()

    def is_slow(self) -> bool:
        """Return whether the current write takes long."""
        began_s = self.began_s
        return began_s is not None and time.monotonic() - began_s > _SLOW_S
