"""Runs scripts with a certain behavior of their memory, and compares the verdicts with the truth."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import linear_regression
from typing import Any, NamedTuple

from harness.records.memory import LeakRow, LeakSeries, LeakVerdict
from harness.records.run import EventKind, EventRow
from harness.store.home import Home
from harness.store.reader import LogReader
from tests.bench.memory_scripts import MemoryScript

_TIMEOUT_S = 300
_BYTES_TOLERANCE, _TIME_FACTOR, _SUM_TOLERANCE = 0.1, 1.5, 0.01
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


class MemoryOutcome(NamedTuple):
    """A script, the differences between the verdicts and its truth, and notes on what is no error."""

    draw: MemoryScript
    differences: dict[str, str]
    notes: tuple[str, ...]


class MemoryLog(NamedTuple):
    """The parts of a run's log that state something about its memory."""

    state: str
    events: Sequence[EventRow]
    leaks: Sequence[LeakRow]
    snapshots: Sequence[str]
    report: dict[str, Any] | None
    report_text: str
    last_step: int

    def last(self, series: LeakSeries) -> LeakRow | None:
        """Return the newest verdict on a series."""
        return next((row for row in reversed(self.leaks) if row.series == series), None)

    def called(self) -> dict[LeakSeries, LeakRow]:
        """Return the verdicts of the series that are called a leak at the end."""
        newest = {LeakSeries(row.series): row for row in self.leaks}
        return {series: row for series, row in newest.items() if row.verdict == LeakVerdict.LEAK}


def run_memory_scripts(
    draws: Sequence[MemoryScript], folder: Path, at_a_time: int
) -> Iterator[MemoryOutcome]:
    """Run each script, so many at a time, and yield its outcome."""
    with ThreadPoolExecutor(at_a_time) as pool:
        yield from pool.map(lambda draw: _outcome(draw, folder / str(draw.seed)), draws)


def _outcome(draw: MemoryScript, place: Path) -> MemoryOutcome:
    place.mkdir(exist_ok=True)
    script = place / "train.py"
    script.write_text(draw.text, encoding="utf-8")
    run = [sys.executable, "-m", "harness", "run", str(script)]
    command = [sys.executable, str(script)] if draw.is_two_lines else run
    if draw.limit is not None:
        command = ["bash", "-c", f'ulimit {draw.limit[0]} {draw.limit[1]}; exec "$@"', "bash", *command]
    environ = os.environ | {"STEPSCOPE_HOME": str(place / "home"), "MEMORY_RECORD": str(place / "record.txt")}
    with (place / "output.txt").open("w") as output:
        done = subprocess.run(
            command, env=environ, stdout=output, stderr=subprocess.STDOUT, check=False, timeout=_TIMEOUT_S
        )
    if not (folders := list(Home(place / "home").runs())):
        return MemoryOutcome(draw, {"script": f"exit code {done.returncode} without a run"}, ())
    log = _read(folders[0].path)
    return MemoryOutcome(
        draw, dict(_differences(draw, log, place, done.returncode)), tuple(_notes(draw, log))
    )


def _read(folder: Path) -> MemoryLog:
    with LogReader(folder / "log.sqlite3") as log:
        events = [event for _, event in log.events()]
        reports = log.memory.oom_reports()
        texts = sorted(folder.glob("captures/oom-step-*.txt"))
        return MemoryLog(
            events[-1].label,
            events,
            log.memory.leaks(),
            [row.message for row in log.memory.snapshots() if row.reason == "leak"],
            json.loads(reports[-1].report) if reports else None,
            texts[-1].read_text() if texts else "",
            log.extent().steps,
        )


def _measured_bytes_per_step(place: Path, leaks: LeakSeries) -> float | None:
    """Return the slope of the memory in use by malloc, or of the resident memory, in the second half of the
    script's own record."""
    column = 2 if leaks is LeakSeries.ALLOCATED else 1
    rows = [line.split() for line in (place / "record.txt").read_text().splitlines()]
    rows = [row for row in rows if len(row) == 3][1:]
    rows = rows[len(rows) // 2 :]
    if len(rows) < 5:
        return None
    return linear_regression([int(row[0]) for row in rows], [int(row[column]) for row in rows]).slope


def _differences(draw: MemoryScript, log: MemoryLog, place: Path, code: int) -> Iterator[tuple[str, str]]:
    if code != 0 and log.report is None:
        yield "script", f"exit code {code} and no report: {log.events[-1].message[:200]}"
        return
    for event in log.events:
        if event.label == "no longer followed":
            yield "watch", event.message
    if draw.behavior.leaks is None:
        if called := [row.message[:90] for row in log.called().values()]:
            yield "verdict", f"healthy, and called a leak: {called}"
        return
    yield from _leak_differences(draw, log, place, draw.behavior.leaks)
    if log.report is not None:
        yield from _report_differences(draw, log, log.report)
    elif (text := _misnamed(draw, log)) is not None:
        yield "line", text


def _leak_differences(
    draw: MemoryScript, log: MemoryLog, place: Path, leaks: LeakSeries
) -> Iterator[tuple[str, str]]:
    """Yield the differences between the verdicts at the end and the truth of a script that `leaks`."""
    called, row = log.called(), log.last(leaks)
    truth = draw.behavior.bytes_per_step or _measured_bytes_per_step(place, leaks)
    limit = None if row is None else row.detection_limit
    if not called and log.report is None and limit is not None and (truth or 0) > limit:
        yield "verdict", f"no leak of {truth:.0f} per step; limit {limit:.0f}, {log.last_step} steps"
    elif called and not {leaks} <= set(called) <= {leaks, draw.behavior.beside}:
        yield "series", f"{sorted(called)} instead of {leaks}"
    elif leaks in called and truth is not None:
        slope = called[leaks].bytes_per_step or 0
        if abs(slope - truth) > max(_BYTES_TOLERANCE * truth, limit or 0):
            yield "bytes", f"{slope:.0f} instead of {truth:.0f}"
    warnings = [event for event in log.events if event.kind == EventKind.LEAK and event.severity == "warning"]
    if len(warnings) > 1:
        yield "warnings", f"{len(warnings)}: {[event.message[:60] for event in warnings]}"


def _misnamed(draw: MemoryScript, log: MemoryLog) -> str | None:
    """Return a snapshot that blames a line that retains nothing."""
    if draw.behavior.leaks != LeakSeries.ALLOCATED or draw.behavior.bytes_per_step is None:
        return None
    for message in log.snapshots:
        lines = [int(number) for number in re.findall(r"train\.py:(\d+)", message)]
        if lines and not draw.lines() & set(lines):
            return f"{message}, of {sorted(draw.lines())}"
    return None


def _report_differences(
    draw: MemoryScript, log: MemoryLog, report: dict[str, Any]
) -> Iterator[tuple[str, str]]:
    if report["verdict"] != "leak":
        yield "cause", f"{report['verdict']}: {report['why'][:200]}"
    first = next(iter(report["facts"]["variables"]), None)
    if draw.behavior.names and (first is None or not set(draw.behavior.names) & _words(first["name"])):
        yield "name", f"{first and first['name']} instead of {draw.behavior.names}"
    limit, parts = _parts(log.report_text)
    if limit is None or abs(sum(parts) - limit) > _SUM_TOLERANCE * limit:
        yield "sum", f"{sum(parts)} of {limit}"
    stated = [row for row in log.leaks if row.steps_to_oom is not None]
    if stated:
        row, left = stated[0], max(1, report["facts"]["step"] - stated[0].step)
        if not left / _TIME_FACTOR <= (row.steps_to_oom or 0) <= left * _TIME_FACTOR:
            yield "time", f"{row.steps_to_oom} steps stated at {row.step}, and {left} were left"


def _words(name: str) -> set[str]:
    return set(re.split(r"\W+", name))


def _parts(text: str) -> tuple[float | None, list[float]]:
    """Return the limit of a report, and the sizes of its parts."""
    lines = iter(text.splitlines())
    limit: float | None = None
    for line in lines:
        if found := re.match(r"Limit\s+([\d.,]+) (\w+)", line):
            limit = _size(*found.groups())
            break
    parts = []
    for line in lines:
        found = re.match(r"\s+([\d.,]+) (B|KiB|MiB|GiB)  ", line)
        if found is None:
            if line.startswith("      "):
                continue
            break
        parts.append(_size(*found.groups()))
    return limit, parts


def _size(number: str, unit: str) -> float:
    return float(number.replace(",", "")) * _UNITS[unit]


def _notes(draw: MemoryScript, log: MemoryLog) -> Iterator[str]:
    if draw.behavior.leaks is None and any(row.verdict == LeakVerdict.LEAK for row in log.leaks):
        yield "called a leak for a while"
    row = None if draw.behavior.leaks is None else log.last(draw.behavior.leaks)
    if row is not None and row.detection_limit is None and log.report is None and not log.called():
        yield f"too few readings for a verdict in {log.last_step} steps"
    if log.report is not None and not any(row.steps_to_oom is not None for row in log.leaks):
        yield "no statement of the time that is left"
