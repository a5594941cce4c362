"""Scripts that run out of the GPU's memory under a cap that they set, in processes of their own: the report's
verdict, its sum, the script's variable and line, and the stated time to the end."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from harness.analysis.oom.budget import budget
from harness.analysis.oom.report import OomReport, OomVerdict, report_from_json
from harness.analysis.oom.text import render
from harness.records.memory import LeakVerdict
from harness.records.run import EventKind, RunState
from harness.store.home import Home
from harness.store.reader import LogReader
from tests.attach_factories import SCRIPTS
from tests.bench.oom_time_series import Statement, against_the_truth

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180)]

CAP_GIB = 4.0
MOST_FACTOR = 1.5
_PATIENCE_S = 120.0
Record = Callable[[str, object], None]


class Death(NamedTuple):
    """The log of a script that ran out of memory."""

    report: OomReport
    verdicts: list[str]
    statements: list[Statement]
    hunts: list[str]


def run(home: Path, what: str, cap_gib: float, device: str) -> "subprocess.CompletedProcess[str]":
    """Run the leaking script to its end."""
    script = [str(SCRIPTS / "leaking.py"), device, str(cap_gib), what]
    return subprocess.run(
        [sys.executable, "-m", "harness", "run", *script],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"STEPSCOPE_HOME": str(home)},
        timeout=_PATIENCE_S,
    )


def died(home: Path, what: str, cap_gib: float = CAP_GIB, device: str = "cuda") -> Death:
    """Return what the log says of the leaking script, which runs out of memory."""
    done = run(home, what, cap_gib, device)
    assert done.returncode == 1, done.stderr[-1000:]
    assert "harness/" not in done.stderr, done.stderr[-1000:]
    (folder,) = Home(home).runs()
    with LogReader(folder.log) as log:
        assert log.run().state == RunState.OUT_OF_MEMORY, (log.run(), done.stderr[-1000:])
        (row,) = log.memory.oom_reports()
        leaks = log.memory.leaks()
        hunts = [event.message for _, event in log.events() if event.kind == EventKind.SNAPSHOT]
    verdicts = [leak.verdict for leak in leaks if leak.series == "allocated"]
    report = report_from_json(row.report)
    assert report.facts.step is not None
    return Death(report, verdicts, against_the_truth(leaks, report.facts.step), hunts)


def check_sum(report: OomReport) -> None:
    """The parts of the limit sum to it."""
    parts = list(budget(report.facts))
    limit_bytes = report.facts.memory.limit_bytes
    assert limit_bytes is not None
    assert sum(part.size_bytes for part in parts) == limit_bytes, parts
    assert not any(part.name.startswith(("excess", "not known")) for part in parts), parts


@pytest.fixture
def record_death(record_property: Record) -> Callable[[Death], None]:
    def record(death: Death) -> None:
        record_property("the report", render(death.report))
        record_property("verdicts", " ".join(dict.fromkeys(death.verdicts)))
        record_property("hunt", "; ".join(death.hunts))
        statements = [f"{one.stated} of {one.left}" for one in death.statements]
        record_property("steps stated of those left", ", ".join(statements[:1] + statements[-1:]))

    return record


@pytest.mark.parametrize(("what", "name"), [("outputs", "history"), ("totals", "total")])
def test_a_leak_is_the_verdict_with_its_variable_and_its_time(
    tmp_path: Path, what: str, name: str, record_death: Callable[[Death], None]
) -> None:
    death = died(tmp_path, what)
    record_death(death)
    assert death.report.verdict is OomVerdict.LEAK
    check_sum(death.report)
    assert LeakVerdict.LEAK in death.verdicts
    assert death.statements[0].factor <= MOST_FACTOR
    assert name in render(death.report) or any("leaking.py" in line for line in death.hunts)


def test_a_tensor_that_grows_by_concatenation_is_a_leak(
    tmp_path: Path, record_death: Callable[[Death], None]
) -> None:
    death = died(tmp_path, "cat")
    record_death(death)
    assert LeakVerdict.LEAK in death.verdicts
    check_sum(death.report)


def test_outputs_of_an_evaluation_with_gradients_are_named(
    tmp_path: Path, record_death: Callable[[Death], None]
) -> None:
    death = died(tmp_path, "evaluation")
    record_death(death)
    check_sum(death.report)
    assert "predictions" in render(death.report)


def test_an_error_that_is_caught_outside_of_all_calls_is_counted_by_the_allocator(tmp_path: Path) -> None:
    done = run(tmp_path, "caught", CAP_GIB, "cuda")
    assert (done.returncode, done.stdout.count("caught")) == (0, 3), done.stderr[-1000:]
    (folder,) = Home(tmp_path).runs()
    with LogReader(folder.log) as log:
        messages = [event.message for _, event in log.events() if event.label == "out of memory, caught"]
    assert len(messages) == 1
    assert "the allocator refused 1 request outside of models" in messages[0]
