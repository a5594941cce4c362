"""Measure how often a measured effect is right: real runs that measure changes with a known effect.

Each run has a core of its own. Results are appended to a file, so that the kinds can be measured in parts;
the table in docs/measured-effect.md is that of all results in it.
"""

import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from statistics import median

from harness.records.measurement import DEFAULT_PAIRS
from tests.bench.figures import HEADER, Figure, machine, row
from tests.bench.measured_runs import KINDS, Plan, Result
from tests.bench.report import with_table

PAGE = Path(__file__).parents[2] / "docs" / "measured-effect.md"
COUNT, QUICK_COUNT = 200, 4
# Measurements in one process.
_EACH = 10
_MODELS = ("mlp", "cnn")
_TIMEOUT_S = 3_600.0
_NAMES = {
    "alone": "no effect",
    "drift": "no effect, steps drift by 3 %",
    "beside": "no effect, another process works half of the time",
    "effect": "2 % longer steps",
}
MOST_CALLED_PCT, LEAST_FOUND_PCT, LEAST_COVERED_PCT = 5.0, 90.0, 95.0


def figures(
    folder: Path,
    is_quick: bool,
    kinds: str | None = None,
    count: int | None = None,
    results: Path | None = None,
    seed: int = 1,
) -> list[Figure]:
    """`count` measurements of each of `kinds` (names with commas between), one run per core. With `results`
    they are added to those of that file, and the page is written."""
    names = list(KINDS) if kinds is None else kinds.split(",")
    count = count or (QUICK_COUNT if is_quick else COUNT)
    file = results or folder / "results.jsonl"
    for name in names:
        _measure(name, count, folder, file, seed)
    rows = [Result(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
    table = list(_figures(rows))
    if results is not None:
        _write(table, rows)
    return table


def _measure(name: str, count: int, folder: Path, file: Path, seed: int) -> None:
    """Measure one kind, and append the results to `file`."""
    cores: SimpleQueue[int] = SimpleQueue()
    for core in sorted(os.sched_getaffinity(0)):
        cores.put(core)
    lock = threading.Lock()
    sizes = [min(_EACH, count - begin) for begin in range(0, count, _EACH)]

    def run(number: int) -> None:
        core = cores.get()
        try:
            model = _MODELS[number % len(_MODELS)]
            plan = Plan(name, model, sizes[number], core, 1_000 * seed + number)
            place = folder / f"{name}-{number}"
            place.mkdir()
            command = [sys.executable, "-m", "tests.bench.measured_runs", json.dumps(plan), str(place)]
            done = subprocess.run(command, check=True, timeout=_TIMEOUT_S, stdout=subprocess.PIPE, text=True)
            with lock, file.open("a", encoding="utf-8") as lines:
                lines.write(done.stdout)
        finally:
            cores.put(core)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(run, range(len(sizes))))


def _figures(results: Sequence[Result]) -> Iterator[Figure]:
    for kind in KINDS.values():
        some = [result for result in results if result.kind == kind.name]
        if not some:
            continue
        name = _NAMES[kind.name]
        if kind.effect:
            yield Figure(f"{name}: longer by", [100 * result.truth for result in some], "%")
            yield _percentage(f"{name}: found", some, "is_found", LEAST_FOUND_PCT, True)
            yield _percentage(f"{name}: wrong sign", some, "has_wrong_sign", 0.0, False)
        else:
            yield _percentage(f"{name}: called", some, "is_called", MOST_CALLED_PCT, False)
        yield _percentage(f"{name}: truth in the interval", some, "is_covered", LEAST_COVERED_PCT, True)
        widths = [result.half_width_pct for result in some]
        yield Figure(f"{name}: half-width of the interval", widths, "%")
        yield Figure(f"{name}: duration of a measurement", [result.seconds for result in some], "s")


def _percentage(name: str, results: Sequence[Result], kind: str, limit: float, is_least: bool) -> Figure:
    count = sum(getattr(result, kind) for result in results)
    share_pct = 100 * count / len(results) if results else math.nan
    return Figure(f"{name} ({count} of {len(results)})", [share_pct], "%", limit, is_least)


def _write(table: Sequence[Figure], results: Sequence[Result]) -> None:
    """Put the table into the page."""
    lines = [
        f"`python -m tests.bench measured --results FILE`, {time.strftime('%Y-%m-%d')},",
        f"{machine()} at the end; at most {DEFAULT_PAIRS} pairs, "
        f"{len(os.sched_getaffinity(0))} runs at a time. "
        "Load average at the end of runs: "
        + ", ".join(
            f"{name} {median(result.load for result in results if result.kind == name):.1f}"
            for name in dict.fromkeys(result.kind for result in results)
        )
        + ".",
        "",
        HEADER,
        *map(row, table),
    ]
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_table(text, "measured", "\n".join(lines)), encoding="utf-8")
