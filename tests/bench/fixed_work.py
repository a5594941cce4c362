"""A fixed piece of work of the kind that a page does, as a unit of processor time: JSON, SQLite and plain
Python. What takes so many times as long travels between machines, where milliseconds do not."""

import json
import sqlite3
import time

_VALUES = 4_000
_GROUPS = 97


def fixed_work() -> int:
    """Write, group and pack `_VALUES` rows; returns the length of the packed text."""
    rows = [(n, n * 7919 % 10_007, 1.0 / (n + 1)) for n in range(_VALUES)]
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute("CREATE TABLE numbers (n INTEGER PRIMARY KEY, a INTEGER, b REAL)")
        connection.executemany("INSERT INTO numbers VALUES (?, ?, ?)", rows)
        sql = f"SELECT n % {_GROUPS}, min(a), max(a), sum(b) FROM numbers GROUP BY 1 ORDER BY 1"
        groups = connection.execute(sql).fetchall()
    finally:
        connection.close()
    names = ("group", "least", "most", "sum")
    table = [dict(zip(names, group, strict=True)) for group in groups for _ in range(8)]
    return len(json.dumps(json.loads(json.dumps(table))))


def fixed_work_ms() -> float:
    """The processor time that the fixed work takes now, in milliseconds: the least of five."""
    return min(_once_ms() for _ in range(5))


def _once_ms() -> float:
    began_ns = time.thread_time_ns()
    fixed_work()
    return (time.thread_time_ns() - began_ns) / 1e6
