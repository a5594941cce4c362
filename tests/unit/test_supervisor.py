"""The supervisor over real processes, locks, logs and signals; the training itself is a stand-in."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness import identity
from harness.errors import HomeError, RunStateError, SettingError, StepscopeError, UsageError
from harness.records.run import CommandKind, RunState
from harness.settings.resolve import resolve
from harness.store.control import ControlLog
from harness.store.folder import RunFolder
from harness.store.reader import LogReader
from harness.supervisor import EscalationStage, Supervisor
from harness.supervisor.launch import child_environment, training_command
from tests.store_factories import write_log
from tests.supervision import IMPATIENT, ROOT, SETTINGS, SupervisorBench, until
from tests.train_factories import raising

pytestmark = pytest.mark.slow


def test_a_run_is_started_watched_and_stopped(bench: SupervisorBench) -> None:
    folder = bench.start("obey", "first")
    assert bench.supervisor.status(folder).state in (RunState.LAUNCHING, RunState.RUNNING)
    bench.wait_for(folder, RunState.RUNNING)
    assert bench.supervisor.stop(folder) is EscalationStage.ENDED
    status = bench.supervisor.status(folder)
    assert status[:2] == (RunState.STOPPED, "Stopped on request.")
    assert "hello from the training process" in folder.output_tail()


def test_a_run_that_ends_by_itself_is_finished_with_its_figures(bench: SupervisorBench) -> None:
    folder = bench.start("finish", "short")
    bench.wait_for(folder, RunState.FINISHED)
    (run,) = bench.supervisor.runs()
    assert (run.run_id, run.name, run.status.state) == (folder.run_id, "short", RunState.FINISHED)
    assert run.settings is not None
    assert run.settings.complete == SETTINGS
    assert run.steps is not None
    assert run.steps >= 1
    assert run.step_ns == pytest.approx(2_000_003, abs=4)
    assert run.samples_per_s == pytest.approx(16_000, rel=0.01)
    assert run.peak_allocated_bytes is not None
    assert run.ended_unix_ns is not None
    assert run.problem is None


def test_ten_starts_with_one_token_are_one_run(bench: SupervisorBench) -> None:
    bench.mode = "obey"
    others = [bench.supervisor, bench.another()] * 5
    with ThreadPoolExecutor(10) as pool:
        folders = list(pool.map(lambda s: s.start(None, SETTINGS, request_id="click"), others))
    assert len(set(folders)) == 1
    assert len(bench.processes) == 1
    assert bench.supervisor.start(None, SETTINGS, request_id="another click") not in folders


def test_two_runs_cannot_have_one_name(bench: SupervisorBench) -> None:
    bench.start("finish", "twin")
    with pytest.raises(UsageError, match="already a run named 'twin'"):
        bench.start("finish", "twin")
    assert len(bench.home.runs()) == 1


def test_what_does_not_fit_is_refused_before_there_is_a_folder(bench: SupervisorBench) -> None:
    with pytest.raises(SettingError, match="images"):
        bench.supervisor.start("bad", resolve({"model": "mlp", "data": "stdlib-text"}))
    assert bench.home.runs() == []


def test_a_home_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(HomeError, match="--home"):
        SupervisorBench(tmp_path / "home").start("obey")


def test_a_process_that_cannot_be_spawned_leaves_no_folder(bench: SupervisorBench) -> None:
    def spawn(*_: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    supervisor = Supervisor(bench.home, spawn=spawn)  # type: ignore[arg-type]  # it never returns
    with pytest.raises(StepscopeError, match="temporarily unavailable"):
        supervisor.start(None, SETTINGS)
    assert bench.home.runs() == []


def test_kill_9_is_called_by_its_name_by_the_parent_and_by_whoever_asks_later(bench: SupervisorBench) -> None:
    folder = bench.start("obey")
    bench.wait_for(folder, RunState.RUNNING)
    os.kill(bench.processes[0].pid, signal.SIGKILL)
    assert "SIGKILL" in bench.wait_for(folder, RunState.KILLED).message
    assert bench.another().status(folder).state is RunState.KILLED


def test_the_end_is_on_record_even_when_nobody_looks(bench: SupervisorBench) -> None:
    folder = bench.start("obey")
    bench.wait_for(folder, RunState.RUNNING)
    os.kill(bench.processes[0].pid, signal.SIGKILL)
    with ControlLog(folder) as control:
        ended = until(control.last_exit, lambda row: row is not None)
    assert ended is not None
    assert ended.returncode == -signal.SIGKILL


def test_kill_9_without_a_parent_to_see_it_is_lost(bench: SupervisorBench) -> None:
    folder = bench.start("obey")
    bench.wait_for(folder, RunState.RUNNING)
    os.kill(bench.processes[0].pid, signal.SIGKILL)
    bench.wait_for(folder, RunState.KILLED)
    folder.control.unlink()
    assert bench.another().status(folder).state is RunState.LOST


def test_a_failed_start_quotes_the_error(bench: SupervisorBench) -> None:
    folder = bench.start("fail")
    status = bench.wait_for(folder, RunState.FAILED)
    assert (
        status.message == "Failed with exit code 1. Last line of its output: ValueError: no such thing as 7"
    )


def test_a_refused_start_says_why(bench: SupervisorBench) -> None:
    folder = bench.start("refuse")
    status = bench.wait_for(folder, RunState.FAILED)
    assert status.message == "Could not start: device cannot be 'cuda:7'; allowed: auto, cpu."


def test_a_restarted_dashboard_finds_the_run_going_and_can_stop_it(bench: SupervisorBench) -> None:
    folder = bench.start("obey")
    later = bench.another()
    bench.wait_for(folder, RunState.RUNNING, supervisor=later)
    assert later.stop(folder) is EscalationStage.ENDED
    assert later.status(folder).state is RunState.STOPPED


_PARENT = """
import sys, time
from pathlib import Path
from tests.supervision import SupervisorBench
bench = SupervisorBench(Path(sys.argv[1]))
print(bench.start("obey").path, flush=True)
time.sleep(600)
"""


def test_a_run_outlives_a_parent_killed_with_9(bench: SupervisorBench) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(bench.home.path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert parent.stdout is not None
    folder = RunFolder(Path(parent.stdout.readline().strip()))
    parent.kill()
    parent.communicate()
    bench.wait_for(folder, RunState.RUNNING)
    before = bench.supervisor.summary(folder).steps or 0
    until(lambda: bench.supervisor.summary(folder).steps or 0, lambda steps: steps > before)
    assert bench.supervisor.stop(folder) is EscalationStage.ENDED
    assert bench.supervisor.status(folder).state is RunState.STOPPED


def test_a_process_deaf_to_everything_is_killed_in_the_end(bench: SupervisorBench) -> None:
    bench.supervisor = bench.another(IMPATIENT)
    folder = bench.start("deaf")
    bench.wait_for(folder, RunState.RUNNING)
    assert bench.supervisor.stop(folder) is EscalationStage.ENDED
    status = bench.supervisor.status(folder)
    assert status.state is RunState.KILLED
    assert "did not stop by itself" in status.message
    notes = [line for line in folder.output_tail() if line.startswith("[stepscope] stop:")]
    assert ["SIGTERM" in notes[0], "SIGKILL" in notes[1]] == [True, True]


def test_a_stop_asked_for_on_the_page_is_seen_through_by_a_process_of_its_own(bench: SupervisorBench) -> None:
    folder = bench.start("obey")
    bench.wait_for(folder, RunState.RUNNING)
    bench.supervisor.request_stop(folder)
    bench.supervisor.request_stop(folder)
    bench.wait_for(folder, RunState.STOPPED)
    helpers = [command for command in bench.commands if "--escalate" in command]
    assert len(helpers) == 1
    assert bench.processes[-1].wait() == 0


def test_a_live_run_is_not_deleted_and_an_ended_one_is_gone(bench: SupervisorBench) -> None:
    folder = bench.start("obey", "dear")
    with pytest.raises(RunStateError, match="stop it first"):
        bench.supervisor.delete(folder)
    bench.wait_for(folder, RunState.RUNNING)
    with pytest.raises(RunStateError, match="'dear' is still running"):
        bench.supervisor.delete(folder)
    bench.supervisor.stop(folder)
    bench.supervisor.delete(folder)
    assert not folder.path.exists()
    assert bench.supervisor.runs() == []


def test_a_run_that_stops_beating_is_stalled_and_asked_once_for_its_stacks(bench: SupervisorBench) -> None:
    folder = bench.start("hang")
    status = bench.wait_for(folder, RunState.STALLED)
    assert status.message.startswith("Not responding")
    until(lambda: folder.output_tail(200), lambda lines: any("fake_training.py" in line for line in lines))
    for supervisor in (bench.supervisor, bench.another()):
        supervisor.status(folder)
    assert sum("stacks were requested" in line for line in folder.output_tail(400)) == 1


def test_a_command_reaches_a_live_run_and_no_other(bench: SupervisorBench) -> None:
    folder = bench.start("obey", "told")
    bench.wait_for(folder, RunState.RUNNING)
    command_id = bench.supervisor.send(folder, CommandKind.SET, {"batch-size": 64, "amp": "bf16"}, "test")
    with ControlLog(folder) as control:
        ((_, command),) = control.commands()
    assert command.command_id == command_id
    assert command.payload == '{"batch_size": 64, "amp": "bf16"}'
    assert bench.supervisor.answer(folder, command_id) is None
    bench.supervisor.stop(folder)
    with pytest.raises(RunStateError, match="'told' is stopped: there is no process to pause"):
        bench.supervisor.send(folder, CommandKind.PAUSE)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"modle": "cnn"}, "did you mean 'model'"),
        ({"model": "cnn"}, "cannot change in a live run"),
        ({"batch_size": 0}, "batch_size cannot be 0"),
        ({"learning_rate": float("nan")}, "learning_rate cannot be nan"),
        ({}, "Nothing to set"),
    ],
)
def test_a_change_that_cannot_be_is_refused_on_the_spot(
    bench: SupervisorBench, changes: dict[str, object], sentence: str
) -> None:
    folder = bench.start("obey")
    with pytest.raises(SettingError, match=sentence):
        bench.supervisor.send(folder, CommandKind.SET, changes)


def test_a_damaged_run_is_listed_with_its_problem_and_can_be_deleted(bench: SupervisorBench) -> None:
    folder = bench.home.create("broken", SETTINGS, time.time_ns() - 10**12)
    folder.log.write_bytes(b"not a log at all")
    folder.control.write_bytes(b"nor is this")
    (folder.path / "request.json").write_text("{")
    whole = bench.home.create("whole", SETTINGS, time.time_ns() - 10**12)
    write_log(whole.log)
    runs = {run.run_id: run for run in bench.supervisor.runs()}
    assert len(runs) == 2
    problem = runs[folder.run_id].problem
    assert problem is not None
    assert "not a Stepscope log" in problem
    assert runs[whole.run_id].problem is None
    bench.supervisor.delete(folder)
    assert not folder.path.exists()


def test_a_folder_whose_process_never_came_is_lost_and_can_be_deleted(bench: SupervisorBench) -> None:
    folder = bench.home.create("never", SETTINGS, time.time_ns() - 60 * 10**9)
    assert bench.supervisor.status(folder).state is RunState.LOST
    bench.supervisor.delete(folder)


def test_the_child_gets_no_streamlit_variables_and_finds_the_package() -> None:
    child = child_environment({"STREAMLIT_SERVER_PORT": "1", "HOME": "/h", "PYTHONPATH": "/x"}, "nonce")
    assert "STREAMLIT_SERVER_PORT" not in child
    assert child["HOME"] == "/h"
    assert child[identity.NONCE_VARIABLE] == "nonce"
    assert child["PYTHONPATH"].endswith("/x")


def test_the_training_command_names_the_folder(bench: SupervisorBench) -> None:
    folder = bench.home.create("named", SETTINGS, time.time_ns())
    assert training_command(folder)[-4:] == ["-m", "harness", "_run", str(folder.path)]


def test_listing_ended_runs_again_does_not_open_their_logs(
    bench: SupervisorBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = bench.home.create("old", SETTINGS, time.time_ns())
    write_log(folder.log)
    os.utime(folder.log, (1, 1))
    listed = bench.supervisor.runs()
    monkeypatch.setattr(LogReader, "__init__", raising(AssertionError("opened again")))
    assert bench.supervisor.runs() == listed


_FIRST_PROCESS = """
import ctypes, subprocess, sys
from pathlib import Path
import psutil
from harness.records.run import RunState
from tests.supervision import ROOT, SupervisorBench, until
PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
bench = SupervisorBench(Path(sys.argv[1]))
start = "import sys; from pathlib import Path; from tests.supervision import SupervisorBench; "
start += "SupervisorBench(Path(sys.argv[1])).start('obey')"
subprocess.run([sys.executable, "-c", start, sys.argv[1]], check=True, cwd=ROOT)
(folder,) = bench.home.runs()
bench.wait_for(folder, RunState.RUNNING)
(adopted,) = psutil.Process().children()
bench.supervisor.request_stop(folder)
bench.wait_for(folder, RunState.STOPPED)
until(lambda: bench.supervisor.status(folder) and psutil.pid_exists(adopted.pid), lambda there: not there)
bench.close()
print([child.status() for child in psutil.Process().children()])
"""


def test_a_run_that_was_adopted_leaves_no_zombie_when_it_ends(bench: SupervisorBench) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FIRST_PROCESS, str(bench.home.path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.stdout == "[]\n", done.stderr
    (folder,) = bench.home.runs()
    with ControlLog(folder) as control:
        ended = control.last_exit()
    assert ended is not None
    assert ended.returncode == 0


def test_a_process_whose_identity_cannot_be_written_is_waited_for_too(
    bench: SupervisorBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.supervisor.children.write_identity", raising(OSError(28, "No space left")))
    folder = bench.start("finish")
    bench.wait_for(folder, RunState.FINISHED)
    until(lambda: identity.start_ticks(bench.processes[0].pid), lambda ticks: ticks is None)
    with ControlLog(folder) as control:
        until(control.last_exit, lambda row: row is not None)
