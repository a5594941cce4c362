"""Real runs that are measured from the shell: kept, interrupted, stopped in the middle."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.records.measurement import MeasurementEnd, MeasurementEndRow
from harness.records.run import CommandKind
from harness.settings.resolve import resolve
from harness.store.control import ControlLog
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.reader import LogReader
from harness.supervisor import Supervisor
from harness.watch.jobs.judging import Judging
from harness.watch.judge_queue import JudgeQueue
from tests.measuring_factories import MEASURED, write_measured_log
from tests.supervision import until
from tests.train_factories import FakeJournal, a_context
from tests.warm_start import fork_training, run_harness

pytestmark = pytest.mark.slow

MEASURE = (sys.executable, "-m", "harness", "measure", "measured")


@pytest.fixture
def folder() -> Iterator[RunFolder]:
    """A run whose loader is slow on purpose."""
    supervisor = Supervisor(Home.locate(None, os.environ), spawn=fork_training)
    settings = resolve({"model": "mlp", "device": "cpu", "slow_loader_ms": 20.0})
    folder = supervisor.start("measured", settings)
    until(lambda: supervisor.summary(folder).steps or 0, lambda steps: steps >= 10)
    yield folder
    if not supervisor.status(folder).state.is_over:
        supervisor.stop(folder, "test")


def last_end(folder: RunFolder) -> MeasurementEndRow | None:
    with LogReader(folder.log) as reader:
        plans = reader.measurements.plans()
        return reader.measurements.end(plans[-1].number) if plans else None


def slow_loader_ms(folder: RunFolder) -> float:
    with LogReader(folder.log) as reader:
        return float(json.loads(reader.settings_history()[-1].settings)["slow_loader_ms"])


@pytest.mark.long
def test_a_change_that_is_better_is_kept(folder: RunFolder) -> None:
    words = ("slow_loader_ms=8", "--pairs", "8", "--keep-if-better", "--json")
    done = run_harness("measure", "measured", *words)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["state"], result["verdict"], result["is_kept"]) == ("completed", "faster", True)
    assert slow_loader_ms(folder) == 8.0


@pytest.mark.long
def test_ctrl_c_ends_the_measurement_and_the_run_goes_on_with_its_settings(folder: RunFolder) -> None:
    command = (*MEASURE, "slow_loader_ms=0")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "measuring slow loader" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "slow loader 20 ms → 0 ms, 0 pairs of blocks" in out
    assert "the settings before it return" in err
    end = last_end(folder)
    assert end is not None
    assert end.state == MeasurementEnd.STOPPED
    assert slow_loader_ms(folder) == 20.0


@pytest.mark.long
def test_a_run_that_is_stopped_in_the_middle_says_so(folder: RunFolder) -> None:
    subprocess.run((*MEASURE, "slow_loader_ms=0", "--no-wait"), check=True, timeout=60)

    def plans() -> int:
        with LogReader(folder.log) as reader:
            return len(reader.measurements.plans())

    until(plans, bool)
    supervisor = Supervisor(Home.locate(None, os.environ))
    supervisor.stop(folder, "test")
    end = last_end(folder)
    assert end is not None
    assert end.state == MeasurementEnd.RUN_ENDED
    assert slow_loader_ms(folder) == 20.0


def test_the_judge_is_a_process_of_its_own(tmp_path: Path) -> None:
    write_measured_log(tmp_path / "log.sqlite3", 0.8, keeps_if_better=True)
    queue = JudgeQueue([1])
    judging = Judging(a_context(), tmp_path, queue)

    def is_busy() -> bool:
        judging.check()
        return queue.is_busy

    until(is_busy, lambda busy: not busy)
    with ControlLog(RunFolder(tmp_path)) as control:
        commands = [(command.kind, command.command_id) for _, command in control.commands()]
    assert commands == [(CommandKind.SET, f"keep-{MEASURED}")]


def test_a_judge_that_fails_is_a_warning_in_the_log(tmp_path: Path) -> None:
    journal = FakeJournal()
    judging = Judging(a_context(journal=journal), tmp_path, JudgeQueue([1]))

    def warnings() -> list[str]:
        judging.check()
        return [event.message for event in journal.events]

    (message,) = until(warnings, bool)
    assert "ended with exit code 1" in message
    assert "a completed one leaves the settings as they were before it." in message
