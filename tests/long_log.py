"""Logs of any length, written by SQL alone: a million steps, with everything that a run of that length has
beside them, in a few seconds. A step takes 70 ms; a device sample comes every second."""

import sqlite3
from pathlib import Path

from harness.records.run import DeviceSampleRow, RunRow, StepRow
from harness.store.appender import LogAppender, open_writing
from harness.store.rollups import LEVELS, SIZES, device_rollup_sql, step_rollup_sql
from tests.store_factories import a_device_sample, a_step

STEP_NS = 70_000_000
_SAMPLE_STEPS = 14
_LEAK_STEPS = 143
"""Ten seconds: so often the verdict on a leak that goes on is written."""
_DEVICE = "cpu"
# What differs from step to step; everything else is as in `tests.store_factories.a_step`.
_VARIED = {
    "step": "n",
    "t_ns": f"n * {STEP_NS}",
    "step_ns": f"{STEP_NS} + n * 7919 % 1000000",
    "loss": "1.0 / (1 + n % 1000)",
    "allocated_bytes": "1000000000 + n * 104729 % 1048576",
    "peak_allocated_bytes": "1500000000 + n * 15485863 % 1048576",
}


def write_long_log(path: Path, run: RunRow, steps: int) -> LogAppender:
    """Write a log of `steps` steps, numbered from 1, to `path`; returns what appends further ones."""
    appender = LogAppender(path, run)
    appender.discard()
    connection = open_writing(path)
    try:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN")
        _insert(connection, "steps", a_step(1), _VARIED, steps)
        samples = steps // _SAMPLE_STEPS
        step = f"n * {_SAMPLE_STEPS}"
        varied = {"seq": "n - 1", "step": step, "t_ns": f"{step} * {STEP_NS}", "util_pct": "n * 31 % 100"}
        _insert(connection, "device_samples", a_device_sample(0, 0, _DEVICE), varied, samples)
        _insert_leaks(connection, steps // _LEAK_STEPS)
        for level in range(1, LEVELS + 1):
            end = steps // SIZES[level]
            connection.execute(step_rollup_sql(level), {"first": 0, "end": end})
            bounds = {"device": _DEVICE, "first": 0, "end": max(samples - 1, 0) // SIZES[level]}
            connection.execute(device_rollup_sql(level), bounds)
        connection.execute("COMMIT")
    finally:
        connection.close()
    appender.reopen(path)
    return appender


def grow_long_log(appender: LogAppender, first: int, steps: int) -> None:
    """Append `steps` steps from `first` on, and the device samples that are due."""
    rows = [a_step(n)._replace(t_ns=n * STEP_NS, step_ns=STEP_NS) for n in range(first, first + steps)]
    due = range((first - 1) // _SAMPLE_STEPS, (first + steps - 1) // _SAMPLE_STEPS)
    samples = [a_device_sample(seq, (seq + 1) * _SAMPLE_STEPS, _DEVICE) for seq in due]
    appender.append(rows, samples)


def _insert(
    connection: sqlite3.Connection,
    table: str,
    row: StepRow | DeviceSampleRow,
    varied: dict[str, str],
    rows: int,
) -> None:
    fields = row._fields
    values = ", ".join(varied.get(field, f":{field}") for field in fields)
    connection.execute(
        f"""WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :rows)
        INSERT INTO {table} ({", ".join(fields)}) SELECT {values} FROM numbers WHERE :rows > 0""",
        {**row._asdict(), "rows": rows},
    )


def _insert_leaks(connection: sqlite3.Connection, rows: int) -> None:
    connection.execute(
        f"""WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :rows)
        INSERT INTO leaks (t_ns, step, series, verdict, since_step, bytes_per_step, low, high, risen_bytes,
            detection_limit, message)
        SELECT n * {_LEAK_STEPS * STEP_NS}, n * {_LEAK_STEPS}, 'allocated', 'leak', 1, 8.0, 7.0, 9.0, n, 1.0,
            'Live tensors grow.'
        FROM numbers WHERE :rows > 0""",
        {"rows": rows},
    )
