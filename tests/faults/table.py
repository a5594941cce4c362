"""All scenarios, and the page that says what was promised and what was measured."""

import os
import platform
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import psutil

from harness.errors import StepscopeError
from harness.words import plural
from tests.faults import clock, dashboards, disk, folders, kernel, kills, shell, signals, soak
from tests.faults.forks import ROOT
from tests.faults.scenario import Bench, Scenario, UnmeasurableError

SCENARIOS: tuple[Scenario, ...] = (
    *kills.SCENARIOS,
    *disk.SCENARIOS,
    *signals.SCENARIOS,
    *dashboards.SCENARIOS,
    *clock.SCENARIOS,
    *kernel.SCENARIOS,
    *folders.SCENARIOS,
    *shell.SCENARIOS,
    *soak.SCENARIOS,
)
_MOST_BROKEN = 5


class Row(NamedTuple):
    """One scenario and what it came to."""

    scenario: Scenario
    measured: str
    broken: tuple[str, ...]
    took_s: float
    is_measured: bool = True

    @property
    def line(self) -> str:
        """The row for a terminal."""
        verdict = "BROKEN" if self.broken else "ok"
        lines = [f"{verdict:7}{self.scenario.name} ({self.took_s:.1f} s): {self.measured}"]
        return "\n".join([*lines, *(f"         - {text}" for text in self.broken)])


def measure(scenario: Scenario, bench: Bench) -> Row:
    """Measure one scenario."""
    began_s = time.monotonic()
    try:
        measurement = scenario.measure(bench)
    except UnmeasurableError as reason:
        text = f"not measured here: {reason}"
        return Row(scenario, text, (), time.monotonic() - began_s, is_measured=False)
    except (AssertionError, TimeoutError, EOFError, OSError, sqlite3.Error, StepscopeError) as error:
        broken = f"{type(error).__name__}: {error}"
        return Row(scenario, "it did not come to its end", (broken,), time.monotonic() - began_s)
    return Row(scenario, measurement.text, measurement.broken, time.monotonic() - began_s)


def page(rows: Sequence[Row], seed: int, took_s: float, commit: str) -> str:
    """The whole of docs/reliability.md. `commit` is the one that was measured."""
    lines = [
        "# Reliability",
        "",
        "What is promised when something goes wrong, and what was measured. `make faults` writes this page:",
        "it brings every fault about on real processes, files and signals. Its quick part is in the tests.",
        "",
        f"Measured on {_machine()}, {datetime.now(UTC):%Y-%m-%d}, at commit {commit}, seed {seed}, "
        f"in {took_s / 60:.0f} minutes at a load of {os.getloadavg()[2]:.0f}.",
        "",
        "| | fault | promise | measured |",
        "|---|---|---|---|",
    ]
    for row in rows:
        measured = row.measured
        if row.broken:
            measured = f"**Broken** in {plural(len(row.broken), 'way')}: " + "; ".join(
                row.broken[:_MOST_BROKEN]
            )
        cells = (f"`{row.scenario.name}`", row.scenario.fault, row.scenario.promise, measured)
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def read_rows(text: str) -> list[tuple[str, str, str, str]]:
    """Name, fault, promise and measurement of each row of the page."""
    rows = []
    for line in text.splitlines():
        if line.startswith("| `"):
            name, fault, promise, measured = re.split(r"(?<!\\)\|", line.strip("| "))
            rows.append((name.strip(" `"), _plain(fault), _plain(promise), _plain(measured)))
    return rows


def _plain(cell: str) -> str:
    return cell.strip().replace("\\|", "|")


def _machine() -> str:
    memory_gib = psutil.virtual_memory().total / 2**30
    return (
        f"{platform.system()} {platform.release()}, {os.cpu_count()} cores, {memory_gib:.0f} GiB, "
        f"Python {sys.version.split()[0]}"
    )


def commit_here() -> str:
    """The commit that is checked out."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"
