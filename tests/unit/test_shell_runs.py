"""The shell over real training: start, steer, pause, stop, interrupt, fail."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import OUT_OF_MEMORY_CODE
from harness.records.run import RunState
from harness.store.home import Home
from harness.supervisor import Supervisor
from harness.supervisor.signals import signal_run
from tests.supervision import until
from tests.warm_start import run_harness

pytestmark = pytest.mark.slow  # each test is a whole run

IDLE = ("mlp", "--slow-loader-ms", "40")
"""A run that waits most of its time, and leaves the processor to the shell."""


def a_supervisor() -> Supervisor:
    return Supervisor(Home.locate(None, os.environ))


def wait_until_training(steps: int = 3) -> None:
    supervisor = a_supervisor()
    (run, *_) = until(
        supervisor.runs,
        lambda runs: bool(runs) and ((runs[0].steps or 0) >= steps or runs[0].status.state.is_over),
    )
    assert not run.status.state.is_over, run.status.message


def test_a_run_is_followed_to_its_end() -> None:
    done = run_harness("run", "mlp", "--max-steps", "30", "--name", "[red]x[/red]")
    assert done.returncode == 0, done.stderr
    assert "Started [red]x[/red]" in done.stderr
    assert "30" in done.stdout
    (run,) = a_supervisor().runs()
    assert (run.status.state, run.steps) == (RunState.FINISHED, 30)


def test_what_the_training_process_refuses_is_told_with_exit_code_2() -> None:
    done = run_harness("run", "mlp", "--device", "cpu", "--amp", "fp16", "--json")
    assert done.returncode == 2
    assert done.stderr.startswith("stepscope: Could not start: amp cannot be 'fp16' on ")
    assert done.stderr.count("\n") == 1
    assert a_supervisor().runs() == []


def test_a_run_that_ends_for_lack_of_memory_has_the_exit_code_of_a_prediction_that_does_not_fit() -> None:
    done = run_harness("run", "mlp", "--device", "cpu", "--inject", "oom:3", "--oom-policy", "stop")
    assert done.returncode == OUT_OF_MEMORY_CODE
    assert "stepscope: Out of memory in step 3: " in done.stderr


@pytest.mark.slow
def test_an_absent_device_is_refused_with_exit_code_2() -> None:
    done = run_harness("run", "mlp", "--device", "cuda:97")
    assert done.returncode == 2
    assert "cuda:97" in done.stderr
    assert a_supervisor().runs() == []


@pytest.mark.slow
def test_a_live_run_is_steered_paused_resumed_and_stopped() -> None:
    assert run_harness("run", *IDLE, "--detach", "--name", "live").returncode == 0
    wait_until_training()
    applied = run_harness("set", "live", "batch_size=64", "amp=bf16")
    assert applied.returncode == 0, applied.stderr
    assert applied.stdout.startswith("applied at step ")
    rejected = run_harness("set", "latest", "amp=fp16")
    assert rejected.returncode == 1
    assert rejected.stderr.startswith("rejected: amp cannot be 'fp16'")
    assert run_harness("do", "live", "empty_cache").returncode == 0
    assert run_harness("pause", "live").returncode == 0
    assert a_supervisor().runs()[0].status.state is RunState.PAUSED
    files = {path.name: path.stat().st_mode & 0o077 for path in a_supervisor().home.runs()[0].path.iterdir()}
    assert {"log.sqlite3-wal", "control.sqlite3", "harness.log", "request.json", "process.json"} <= set(files)
    assert not any(files.values()), files  # Other users can neither read nor write any of them.
    assert run_harness("resume", "live").returncode == 0
    assert run_harness("delete", "live").returncode == 1
    assert "changed to" in run_harness("show", "live").stdout
    stopped = run_harness("stop", "live", "--json")
    assert (stopped.returncode, json.loads(stopped.stdout)["state"]) == (0, "stopped")
    assert a_supervisor().runs()[0].status.state is RunState.STOPPED
    assert run_harness("delete", "live").returncode == 0


@pytest.mark.slow
def test_a_run_started_detached_in_json_is_lost_when_killed_with_9_and_keeps_its_steps() -> None:
    start = json.loads(run_harness("run", *IDLE, "--detach", "--json").stdout)
    assert Path(start["path"]).name == start["run_id"]
    wait_until_training()
    assert signal_run(a_supervisor().home.find(start["run_id"]), signal.SIGKILL)
    (run,) = until(a_supervisor().runs, lambda runs: runs[0].status.state is RunState.LOST)
    assert (run.steps or 0) >= 3
    after = f"after step {run.last_step} w"
    assert after in run.status.message or run.status.message.endswith("Everything is in the log.")


@pytest.mark.long
@pytest.mark.parametrize("can_be_sent", [True, False])
def test_one_interrupt_stops_the_run_in_order_even_where_no_command_can_be_sent(can_be_sent: bool) -> None:
    following = subprocess.Popen(
        [sys.executable, "-m", "harness", "run", *IDLE],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_until_training()
    if not can_be_sent:
        (run,) = a_supervisor().home.runs()
        run.control.write_bytes(b"not a database at all" * 100)
    following.send_signal(signal.SIGINT)
    _, err = following.communicate(timeout=30)
    assert following.returncode == 130, err
    assert "Ctrl-C again" in err
    assert "Traceback" not in err
    assert ("The run is stopped by signals instead." in err) is not can_be_sent
    assert a_supervisor().runs()[0].status.state is RunState.STOPPED


@pytest.mark.long
def test_a_terminal_sees_a_line_that_moves() -> None:
    controller, terminal = pty.openpty()
    following = subprocess.Popen(
        [sys.executable, "-m", "harness", "run", *IDLE, "--max-steps", "60", "--name", "[red]x[/red]"],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=os.environ | {"COLUMNS": "160", "TERM": "xterm"},
    )
    os.close(terminal)
    output = b""
    while True:
        try:
            piece = os.read(controller, 65536)
        except OSError:  # EIO: the other end is closed.
            break
        if not piece:
            break
        output += piece
    os.close(controller)
    assert following.wait(30) == 0
    text = output.decode("utf-8", "replace")
    assert "/60" in text
    assert "samples/s" in text
    assert "[red]x[/red]" in text


@pytest.mark.parametrize("words", ["run --help", "list"])
def test_the_installed_command_is_there(words: str) -> None:
    command = Path(sys.executable).with_name("stepscope")
    assert subprocess.run([command, *words.split()], capture_output=True, check=False).returncode == 0
