"""Remote runs: the collector in a process of its own, over a link that a test breaks; real files and
processes. The training itself is a stand-in."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from harness.analysis.state import RunStatus
from harness.identity import read_identity
from harness.records.remote import RemoteRequest
from harness.records.run import CommandKind, RunState
from harness.records.script import ScriptOrigin
from harness.remote.node import HOME_VARIABLE, node_home, spawn_dependent
from harness.store.control import ControlLog
from harness.store.folder import RunFolder
from harness.store.reader import LogReader
from harness.supervisor import Supervisor
from harness.supervisor.launch import Process, spawn
from harness.tune.trial_run import WarmRun
from tests.supervision import PATIENT, ROOT, SETTINGS, SupervisorBench, last_step, until
from tests.tune_factories import a_tune

pytestmark = pytest.mark.slow


class RemoteBench:
    """A home with runs that train on a node with a folder of its own."""

    def __init__(self, path: Path) -> None:
        self.bench = SupervisorBench(path / "home")
        self.node_home = path / "node"
        self.node_home.mkdir()
        self.mode = "obey"
        self.supervisor = Supervisor(self.bench.home, spawn=self.spawn, patience=PATIENT)

    def spawn(self, command: list[str], environ: Mapping[str, str], output: Path) -> Process:
        if "_run" in command:
            script = str(ROOT / "tests" / "collector_process.py")
            command = [sys.executable, "-P", script, self.mode, str(self.node_home), *command[-4:]]
        process = spawn(command, {**environ, "PYTHONPATH": str(ROOT)}, output)
        self.bench.processes.append(process)
        return process

    def start(self, mode: str, retries: int = 0) -> RunFolder:
        self.mode = mode
        return self.supervisor.start("far away", SETTINGS, remote=RemoteRequest("ray", retries))

    def start_script(self, path: Path, arguments: tuple[str, ...], python: str = sys.executable) -> RunFolder:
        self.mode = "script"
        origin = ScriptOrigin(path.name, arguments, str(path.parent), python, None, None)
        return self.supervisor.start_script(None, origin, remote=RemoteRequest("ray", 0))

    def there(self, folder: RunFolder) -> RunFolder:
        """The folder on the node."""
        return RunFolder(self.node_home / "runs" / folder.run_id)


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[RemoteBench]:
    remote = RemoteBench(tmp_path)
    yield remote
    remote.bench.close()


def test_steps_output_and_commands_pass_while_the_run_trains(remote: RemoteBench) -> None:
    folder = remote.start("obey")
    until(lambda: last_step(folder), lambda steps: steps > 20)
    assert remote.supervisor.status(folder).state is RunState.RUNNING
    assert "hello from the training process" in folder.output_tail()
    remote.supervisor.stop(folder)
    assert remote.supervisor.status(folder)[:2] == (RunState.STOPPED, "Stopped on request.")
    with LogReader(folder.log) as here, LogReader(remote.there(folder).log) as there:
        assert here.extent() == there.extent()


@pytest.mark.long
def test_steps_arrive_within_two_seconds(remote: RemoteBench) -> None:
    folder = remote.start("obey")
    until(lambda: last_step(folder), bool)
    for _ in range(5):
        there = last_step(remote.there(folder))
        began_s = time.monotonic()
        until(partial(last_step, folder), there.__le__)
        assert time.monotonic() - began_s < 2.0
    remote.supervisor.stop(folder)


def test_a_node_that_dies_leaves_what_had_arrived_and_the_run_is_lost(remote: RemoteBench) -> None:
    folder = remote.start("obey", retries=3)
    until(lambda: last_step(folder), lambda steps: steps > 20)
    (remote.node_home / "dead").touch()
    status = until(lambda: remote.supervisor.status(folder), lambda status: status.state.is_over)
    assert status.state is RunState.LOST
    assert "was lost while it trained (the node died); everything up to step" in status.message
    assert last_step(folder) > 20
    retries = remote.node_home / "retries"
    assert until(lambda: retries.exists() and retries.read_text(), bool) == "2"


def test_a_run_that_is_lost_is_not_retried_unless_requested(remote: RemoteBench) -> None:
    folder = remote.start("obey")
    until(lambda: last_step(folder), bool)
    (remote.node_home / "dead").touch()
    until(lambda: remote.bench.processes[0].poll(), lambda code: code is not None)
    assert not (remote.node_home / "retries").exists()


def test_a_link_that_is_silent_for_a_while_loses_nothing_and_repeats_nothing(remote: RemoteBench) -> None:
    folder = remote.start("obey")
    until(lambda: last_step(folder), bool)
    (remote.node_home / "silent").touch()
    command_id = remote.supervisor.send(folder, CommandKind.PAUSE)
    with ControlLog(remote.there(folder)) as control:
        until(control.commands, bool)
    before = last_step(folder)
    (remote.node_home / "silent").unlink()
    until(lambda: last_step(folder), lambda steps: steps > before + 20)
    with LogReader(folder.log) as log:
        extent = log.extent()
    assert (extent.first, extent.steps) == (1, extent.last)
    with ControlLog(remote.there(folder)) as control:
        assert [row.command_id for _, row in control.commands()] == [command_id]
    remote.supervisor.stop(folder)


@pytest.mark.long
@pytest.mark.parametrize("by_signal", [False, True])
def test_a_run_that_waits_for_a_node_says_so_and_can_be_stopped(
    remote: RemoteBench, monkeypatch: pytest.MonkeyPatch, by_signal: bool
) -> None:
    monkeypatch.setattr("harness.analysis.state.HEARTBEAT_LIMIT_S", 2.5)
    (remote.node_home / "waiting").touch()
    folder = remote.start("obey")
    waits = RunStatus(RunState.LAUNCHING, "Waits for a machine of the cluster that is free for it.")
    until(lambda: remote.supervisor.status(folder), waits.__eq__)
    time.sleep(4.0)
    assert remote.supervisor.status(folder) == waits
    began_s = time.monotonic()
    if by_signal:
        os.kill(remote.bench.processes[0].pid, signal.SIGTERM)
        until(lambda: remote.bench.processes[0].poll(), lambda code: code is not None)
    else:
        remote.supervisor.stop(folder)
    assert time.monotonic() - began_s < 5.0
    status = remote.supervisor.status(folder)
    assert status[:2] == (RunState.STOPPED, "Stopped on request, before a machine was free for it.")


@pytest.mark.long
def test_a_run_that_waited_for_a_node_trains(remote: RemoteBench) -> None:
    (remote.node_home / "waiting").touch()
    folder = remote.start("obey")
    until(lambda: remote.supervisor.status(folder).message, lambda message: message.startswith("Waits for"))
    (remote.node_home / "waiting").unlink()
    until(lambda: last_step(folder), bool)
    assert remote.supervisor.status(folder).state is RunState.RUNNING
    remote.supervisor.stop(folder)


def test_a_tune_waits_until_a_machine_trains_its_run_and_keeps_to_that_machine(remote: RemoteBench) -> None:
    waiting = remote.node_home / "waiting"
    waiting.touch()
    warm = WarmRun(remote.supervisor, remote.start("obey"), SETTINGS)
    polls = []

    def poll() -> bool:
        polls.append(warm.host)
        if len(polls) == 5:
            waiting.unlink()
        return False

    assert warm.wait_until_placed(poll) > 4 * 0.2
    assert set(polls) == {None}
    assert warm.host == "here"
    assert a_tune(engine="ray", host=warm.host).remote == RemoteRequest("ray", host="here")
    warm.close()


@pytest.mark.long
def test_a_command_that_follows_a_request_without_an_answer_yet_arrives(remote: RemoteBench) -> None:
    folder = remote.start("obey")
    until(lambda: last_step(folder), bool)
    (remote.node_home / "late").touch()
    sent = []
    for _ in range(8):
        sent.append(remote.supervisor.send(folder, CommandKind.PAUSE))
        time.sleep(0.3)
    with ControlLog(remote.there(folder)) as control:
        until(lambda: [row.command_id for _, row in control.commands()], sent.__eq__)
    remote.supervisor.stop(folder)


def test_a_process_that_is_killed_on_the_node_says_so(remote: RemoteBench) -> None:
    folder = remote.start("deaf")
    until(lambda: last_step(folder), bool)
    identity = read_identity(remote.there(folder).process)
    assert identity is not None
    os.kill(identity.pid, signal.SIGKILL)
    status = until(lambda: remote.supervisor.status(folder), lambda status: status.state.is_over)
    assert status.state is RunState.KILLED
    assert status.message.startswith("Killed by SIGKILL on ")


def test_a_run_that_fails_before_it_has_a_log_brings_its_output(remote: RemoteBench) -> None:
    folder = remote.start("fail")
    status = until(lambda: remote.supervisor.status(folder), lambda status: status.state.is_over)
    assert status.state is RunState.FAILED
    assert "no such thing as 7" in status.message


# Trains five steps, and ends with the number of characters of its argument.
_SCRIPT = """
import os, sys, torch
assert os.path.exists("train.py")
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
print("arguments:", sys.argv[1:])
sys.exit(len(sys.argv[1]) % 256)
"""


def test_a_script_runs_in_its_folder_with_its_arguments_and_its_exit_code(
    remote: RemoteBench, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(_SCRIPT)
    # Longer than a page shows, and with a letter that it does not show; the interpreter is not on the node.
    word = "\u200b" + 300 * "x"
    folder = remote.start_script(tmp_path / "train.py", (word, "--on"), python="/not/there/python")
    status = until(lambda: remote.supervisor.status(folder), lambda status: status.state.is_over)
    assert status.state is RunState.FAILED
    assert f"exited with {len(word) - 256}" in status.message
    assert last_step(folder) == 5
    # Its interpreter writes what it printed when it ends, after the log has the run's end.
    until(folder.output_tail, lambda lines: any(str([word, "--on"]) in line for line in lines))
    origin = folder.request().script
    assert origin is not None
    assert (origin.command, origin.arguments[1]) == ("train.py", "--on")
    assert remote.supervisor.summary(folder).script == origin


@pytest.mark.long
def test_a_script_that_the_node_does_not_have_says_so(remote: RemoteBench, tmp_path: Path) -> None:
    folder = remote.start_script(tmp_path / "gone.py", ())
    status = until(lambda: remote.supervisor.status(folder), lambda status: status.state.is_over)
    assert status.state is RunState.FAILED
    assert f"There is no script 'gone.py' in {tmp_path}" in status.message


def test_a_training_process_ends_with_its_node(tmp_path: Path) -> None:
    started: list[Process] = []

    def run() -> None:
        started.append(spawn_dependent(["sleep", "600"], os.environ, tmp_path / "out"))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert until(started[0].poll, lambda code: code is not None) == -signal.SIGTERM


def test_a_node_has_its_runs_beside_those_of_the_home(tmp_path: Path) -> None:
    assert node_home({HOME_VARIABLE: str(tmp_path)}) == tmp_path
    assert node_home({}).name == "stepscope-node"
