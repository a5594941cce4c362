"""A person's own script under watch, in a process of its own."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from harness.records.run import CommandKind, EventKind, RunState
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.reader import LogReader
from harness.supervisor.supervisor import Supervisor
from tests.attach_factories import SCRIPTS, recorded
from tests.warm_start import run_python

PATIENCE_S = 60

# A loop that trains until something ends it.
LOOP = """
import os, sys, time, torch
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()
"""


class Done(NamedTuple):
    """The exit code of a process, and what it printed."""

    code: int
    stdout: str
    stderr: str


def words(home: Path, script: Path, *arguments: str) -> list[str]:
    """The arguments of `python` in the command that runs a script under watch."""
    return ["-m", "harness", "run", "--home", str(home), str(script), *arguments]


def done(*words: str) -> Done:
    """The result of `python` with these words."""
    command = (sys.executable, *words)
    process = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return Done(process.returncode, process.stdout, process.stderr)


def done_warm(*words: str) -> Done:
    """Like `done`, in a process that has imported torch."""
    process = run_python(*words)
    return Done(process.returncode, process.stdout, process.stderr)


def the_run(home: Path) -> RunFolder:
    (folder,) = Home(home).runs()
    return folder


def a_script(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(LOOP + text)
    return path


@pytest.mark.slow
def test_a_script_with_loader_workers_trains_as_without_stepscope(tmp_path: Path) -> None:
    script = SCRIPTS / "loader_workers.py"
    bare, watched = done_warm(str(script)), done_warm(*words(tmp_path, script))
    assert (watched.code, watched.stdout) == (bare.code, bare.stdout), watched.stderr
    log = recorded(the_run(tmp_path))
    assert log.run.state == RunState.FINISHED
    assert [row.step for row in log.steps] == list(range(1, 12 + 1))
    assert {row.samples for row in log.steps} == {8}


@pytest.mark.slow
def test_an_interrupted_script_ends_by_the_signal_as_under_python(tmp_path: Path) -> None:
    text = """
import atexit, signal
atexit.register(print, "at exit")
try:
    train(3)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
finally:
    print("saved")
"""
    watched = done(*words(tmp_path, a_script(tmp_path, text)))
    assert (watched.code, watched.stdout) == (-signal.SIGINT, "saved\nat exit\n")
    assert recorded(the_run(tmp_path)).run.state == RunState.STOPPED


@pytest.mark.long
def test_an_interrupt_that_python_would_ignore_stays_ignored(tmp_path: Path) -> None:
    """As where a shell script starts the command in the background."""
    script = a_script(tmp_path, "train(3)\nos.kill(os.getpid(), 2)\ntrain(3)\nprint('trained')\n")
    shell = f"trap '' INT; {shlex.join((sys.executable, *words(tmp_path, script)))}"
    process = subprocess.run(("sh", "-c", shell), capture_output=True, text=True, timeout=120, check=False)
    watched = Done(process.returncode, process.stdout, process.stderr)
    assert (watched.code, watched.stdout) == (0, "trained\n")
    assert len(recorded(the_run(tmp_path)).steps) == 6


@pytest.mark.slow
def test_a_script_that_kills_itself_leaves_an_intact_log(tmp_path: Path) -> None:
    script = a_script(tmp_path, "train(300)\ntime.sleep(1.5)\ntrain(1)\nos.kill(os.getpid(), 9)\n")
    ended = done_warm(*words(tmp_path, script))
    assert (ended.code, ended.stdout) == (-signal.SIGKILL, "")
    folder = the_run(tmp_path)
    with LogReader(folder.log) as log:
        assert 300 <= log.extent().steps <= 301
    status = Supervisor(Home(tmp_path)).status(folder)
    assert status.state == RunState.LOST
    assert status.message.startswith("The process vanished at step 30")


@pytest.mark.slow
@pytest.mark.long
def test_a_script_that_forks_spawns_replaces_its_output_and_prints_much_is_not_disturbed(
    tmp_path: Path,
) -> None:
    script = a_script(
        tmp_path,
        """
import io, multiprocessing
def work(number):
    train(3)
    return number
if __name__ == "__main__":
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(pool.map(work, [1, 2]))
    pid = os.fork()
    if pid == 0:
        train(2)
        sys.exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    train(10)
    if os.fork() == 0:
        train(2)
        os._exit(0)
    os.wait()
    train(10)
    print("x" * 20_000_000, flush=True)
    sys.stdout = io.StringIO()
    print("not shown")
""",
    )
    ended = done(*words(tmp_path, script))
    assert ended.code == 0, ended.stderr
    assert ended.stdout == "[1, 2]\n[1, 2]\n7\n" + "x" * 20_000_000 + "\n"
    log = recorded(the_run(tmp_path))
    assert (log.run.state, len(log.steps)) == (RunState.FINISHED, 20)


@pytest.mark.long
def test_a_script_with_a_syntax_error_shows_the_error_as_python_does(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os\nprint('never'\n")
    bare, watched = done(str(script)), done(*words(tmp_path, script))
    assert (watched.code, watched.stdout) == (bare.code, "")
    assert watched.stderr.endswith(bare.stderr)
    log = recorded(the_run(tmp_path))
    assert log.run.state == RunState.FAILED
    assert log.run.state_message.startswith("SyntaxError: '(' was never closed")


@pytest.mark.slow
def test_a_script_that_does_not_exist_is_refused_in_one_sentence(tmp_path: Path) -> None:
    refused = done(*words(tmp_path, Path("no/script.py")))
    assert (refused.code, refused.stdout) == (2, "")
    (sentence,) = refused.stderr.splitlines()
    assert sentence.startswith("stepscope: There is no script 'no/script.py' in ")
    assert Home(tmp_path).runs() == []


@pytest.mark.slow
def test_a_script_is_paused_resumed_and_stopped_from_another_process_and_cleans_up(tmp_path: Path) -> None:
    script = a_script(
        tmp_path,
        """
try:
    train(10**9)
finally:
    time.sleep(0.5)
    print("saved", flush=True)
""",
    )
    supervisor = Supervisor(Home(tmp_path))
    process = subprocess.Popen([sys.executable, *words(tmp_path, script)], stdout=subprocess.PIPE, text=True)
    deadline_s = time.monotonic() + PATIENCE_S
    try:
        while not (Home(tmp_path).runs() and the_run(tmp_path).log.exists()):
            assert process.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        folder = the_run(tmp_path)

        def wait_for(state: RunState) -> None:
            while supervisor.status(folder).state != state:
                assert time.monotonic() < deadline_s, supervisor.status(folder)
                time.sleep(0.05)

        wait_for(RunState.RUNNING)
        supervisor.send(folder, CommandKind.PAUSE)
        wait_for(RunState.PAUSED)
        supervisor.send(folder, CommandKind.RESUME)
        wait_for(RunState.RUNNING)
        supervisor.send(folder, CommandKind.STOP, source="test")
        stdout, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, stdout) == (130, "saved\n")
    log = recorded(folder)
    assert (log.run.state, log.run.state_message) == (RunState.STOPPED, "Stopped by request from test.")
    assert not [event for event in log.events if event.kind in (EventKind.ERROR, EventKind.WARNING)]


@pytest.mark.long
def test_a_script_that_never_imports_torch_ends_without_a_word_on_torch(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint('torch' in sys.modules)\n")
    ended = done(*words(tmp_path, script))
    folder = the_run(tmp_path)
    name = folder.request().name
    begin = f"stepscope: {script} is run {name} ({folder.run_id}); see it with: stepscope dashboard\n"
    assert ended == (0, "False\n", begin)
    run = recorded(folder).run
    assert (run.state, run.state_message) == (
        RunState.FINISHED,
        "The script ended before its first step: no optimizer stepped, and backward() was not called.",
    )


@pytest.mark.slow
def test_stepscope_can_be_switched_off(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint(sys.argv[1:], 'torch' in sys.modules)\nsys.exit(5)\n")
    environ = os.environ | {"STEPSCOPE_DISABLED": "1"}
    process = subprocess.run(
        [sys.executable, *words(tmp_path, script, "--home", "mine")],
        capture_output=True,
        text=True,
        env=environ,
        check=False,
    )
    assert (process.returncode, process.stdout) == (5, "['--home', 'mine'] False\n")
    assert Home(tmp_path).runs() == []
