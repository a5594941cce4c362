"""The other runs are listed correctly beside a run's folder with any contents, and nothing hangs."""

import json
import random
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from harness.cli import main
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.supervisor import RunSummary, Supervisor
from tests.hostile_folders import CASES, STEPS, spoil_somehow, whole_run

LIMIT_S = 30.0
HEALTHY = "20260101-000000-good"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with two runs, of which one is to be spoiled."""
    home = Home(tmp_path_factory.mktemp("template"))
    whole_run(home, "oom", HEALTHY)
    whole_run(home, "amp", "20260102-000000-evil")
    return home.path


class Bench:
    """A copy of the template per example."""

    def __init__(self, template: Path, path: Path) -> None:
        self._template = template
        self.home = Home(path / "home")
        self.expected: RunSummary | None = None

    def fresh(self) -> RunFolder:
        shutil.rmtree(self.home.path, ignore_errors=True)
        # With their times: they tell when a run ended.
        shutil.copytree(self._template, self.home.path)
        if self.expected is None:
            (self.expected,) = (run for run in self.runs() if run.run_id == HEALTHY)
            assert self.expected.steps == STEPS
        return RunFolder(self.home.runs_path / "20260102-000000-evil")

    def runs(self) -> list[RunSummary]:
        return Supervisor(self.home).runs()


@pytest.fixture
def bench(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("STEPSCOPE_HOME", str(tmp_path / "home"))
    return Bench(template, tmp_path)


@contextmanager
def no_longer_than(limit_s: float) -> Iterator[None]:
    """Fail what is still under way after `limit_s`, also a system call that waits."""

    def fail(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"still under way after {limit_s} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def check(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """Lists are complete with anything else in the home, and the healthy run is listed with its figures."""
    with no_longer_than(LIMIT_S):
        runs = {run.run_id: run for run in bench.runs()}
        assert runs[HEALTHY] == bench.expected
        capsys.readouterr()
        assert main(["list", "--json"]) == 0
        listed = {run["run_id"]: run for run in json.loads(capsys.readouterr().out)}
        assert listed[HEALTHY]["steps"] == STEPS
        assert listed.keys() == runs.keys()
        assert main(["list"]) == 0


def check_shown(folder: RunFolder, capsys: pytest.CaptureFixture[str], *formats: str) -> None:
    """`show` answers with text of some length that every encoding can write, or with a sentence."""
    for words in (["show", folder.run_id], *(["show", folder.run_id, one] for one in formats)):
        capsys.readouterr()
        assert main(words) in (0, 1, 2)
        output = capsys.readouterr()
        assert "Traceback" not in output.err
        assert len(output.out) < 5_000_000
        output.out.encode()


UNREADABLE = {
    "endless view": "contains the view 'steps'",
    "trigger": "contains the trigger 't'",
    "last step there is": "numbered from 1 to 9223372036854775807",
    "numbers as text": "has a value of the kind",
    "endless name": "a value is larger than any",
    "pipe as log.sqlite3": "it is a named pipe, not a regular file",
    "pipe as journal": "it is a named pipe, not a regular file",
    "loop as log.sqlite3": "it is a symbolic link, not a regular file",
    "no steps": "no such table: steps",
    "nested JSON": "nested too deeply",
    "half a character": "is not a valid request",
}


@pytest.mark.long
@pytest.mark.parametrize("every", [1, 6])
def test_no_spoiled_run_hides_another_and_each_can_be_deleted(
    every: int, bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    one = bench.fresh()
    cases = [*CASES][::every]
    folders = {case: RunFolder(one.path.with_name(f"evil-{at}")) for at, case in enumerate(cases)}
    for case, folder in folders.items():
        shutil.copytree(one.path, folder.path)
        CASES[case](folder)
    check(bench, capsys)
    rows = {run.run_id: run for run in bench.runs()}
    supervisor = Supervisor(bench.home)
    for case, folder in folders.items():
        row = rows[folder.run_id]
        assert len(row.name) <= 200, case
        assert row.name.isprintable(), case
        if case in UNREADABLE:
            assert UNREADABLE[case] in (row.problem or ""), case
        with no_longer_than(LIMIT_S):
            check_shown(folder, capsys)
            supervisor.delete(folder)
    assert {run.run_id for run in supervisor.runs()} == {HEALTHY, one.run_id}


def fuzz(count: int, seed: int, bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """Spoil `count` copies of a run at random and check each."""
    for number in range(count):
        chance = random.Random(f"{seed}-{number}")
        folder = bench.fresh()
        how = spoil_somehow(folder, chance)
        try:
            check(bench, capsys)
            check_shown(folder, capsys, "--json")
        except Exception as error:
            error.add_note(f"example {seed}-{number}: {how}")
            raise


@pytest.mark.slow
def test_random_changes_hide_no_other_run(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    fuzz(12, 0, bench, capsys)


@pytest.mark.long
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("seed", range(1, 5))
def test_many_random_changes_hide_no_other_run(
    seed: int, bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    fuzz(500, seed, bench, capsys)
