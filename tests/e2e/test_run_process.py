"""The training process for real: a child, its log, its control file, signals, limits and a `kill -9`."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from harness.errors import OUT_OF_MEMORY_CODE, LogError
from harness.records.run import AckRow, CommandKind, CommandState, EventKind, EventRow, RunState, StepFlag
from harness.run import EXIT_OK
from harness.settings.resolve import resolve
from harness.store.control import ControlLog
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.liveness import is_alive
from harness.store.reader import LogReader
from tests.store_factories import step_numbers
from tests.supervision import PATIENCE_S
from tests.train_factories import a_command
from tests.warm_start import WarmProcess, run_script


class Child:
    """A training process and what it has written so far."""

    def __init__(
        self, folder: RunFolder, preexec: Callable[[], None] | None = None, is_fresh: bool = False
    ) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | WarmProcess
        if preexec is None and not is_fresh:
            self.process = WarmProcess(folder)
            return
        with folder.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "harness", "_run", str(folder.path)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                preexec_fn=preexec,
            )

    def read(self, question: Callable[[LogReader], Any]) -> Any:
        with LogReader(self.folder.log) as log:
            return question(log)

    def until(self, condition: Callable[[LogReader], Any]) -> Any:
        """Wait until `condition` holds of the log, or fail with the child's output."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                if result := self.read(condition):
                    return result
            except LogError:
                pass
            assert self.process.poll() is None, self.output
            time.sleep(0.02)
        raise AssertionError(f"waited too long; the run's output:\n{self.output}")

    def until_step(self, step: int) -> None:
        self.until(lambda log: (log.extent().last or 0) >= step)

    def request(self, kind: str, payload: str = "{}", command_id: str = "c1") -> AckRow:
        """Send a command and wait for its answer."""
        with ControlLog(self.folder) as control:
            control.send(a_command(kind, payload, command_id))
        answer: AckRow = self.until(lambda log: [a for a in log.acks() if a.command_id == command_id])[0]
        return answer

    def end(self) -> int:
        """Wait for the process to end by itself; its exit code."""
        return self.process.wait(PATIENCE_S)

    def events(self, kind: EventKind) -> list[EventRow]:
        events: list[tuple[int, EventRow]] = self.read(lambda log: log.events())
        return [event for _, event in events if event.kind == kind]

    @property
    def state(self) -> str:
        return str(self.read(lambda log: log.run().state))

    @property
    def output(self) -> str:
        return self.folder.output.read_text(errors="replace")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@contextmanager
def a_child(
    home: Home, preexec: Callable[[], None] | None = None, *, is_fresh: bool = False, **values: Any
) -> Iterator[Child]:
    """A child that leaves its core to others most of the time.

    `is_fresh` is for tests of memory: the heap of a forked process has so many holes from its parent's
    imports that it can be too slow to be read at every step."""
    settings = resolve({"model": "mlp", "device": "cpu", "slow_loader_ms": 3.0} | values)
    child = Child(home.create(None, settings, time.time_ns()), preexec, is_fresh)
    try:
        yield child
    finally:
        if child.process.poll() is None:
            child.process.kill()
            child.process.wait()


def test_a_run_finishes_and_leaves_one_whole_plain_log(home: Home) -> None:
    with a_child(home, is_fresh=True, max_steps=120) as child:
        assert child.end() == EXIT_OK, child.output
    with LogReader(child.folder.log) as log:
        log.check()
        run = log.run()
        assert (run.state, run.state_message) == (RunState.FINISHED, "Took all 120 steps.")
        assert run.model_parameters is not None
        assert run.ended_unix_ns is not None
        rows = log.last_steps(1000)
        assert [row.step for row in rows] == list(range(1, 121))
        assert all(row.flags == StepFlag.WARM_UP for row in rows[:5])
        assert all(row.flags == 0 for row in rows[5:])
        assert all(row.loss is not None and row.allocated_bytes and row.rss_bytes for row in rows)
        assert all(row.device_step_ns is None for row in rows)
        assert rows[-1].loss is not None
        assert rows[0].loss is not None
        assert rows[-1].loss < rows[0].loss
        assert [row.version for row in log.settings_history()] == [1]
        assert log.latest_host_sample() is not None
        assert [event.label for _, event in log.events()] == ["running", "finished"]
    assert {path.name for path in child.folder.path.iterdir()} == {
        "request.json",
        "log.sqlite3",
        "harness.log",
        "alive",
        "process.json",
    }
    assert child.output == ""


def test_a_run_is_steered_while_it_goes_on(home: Home) -> None:
    with a_child(home) as child:
        child.until_step(20)
        assert is_alive(child.folder.alive)
        assert json.loads(child.folder.process.read_text())["pid"] == child.process.pid
        change = child.request(CommandKind.SET, '{"batch_size": 16, "amp": "bf16"}', "change")
        assert change.state == CommandState.APPLIED, change
        refused = child.request(CommandKind.SET, '{"amp": "fp16"}', "refused")
        assert refused.state == CommandState.REJECTED
        assert "it supports: off, bf16" in refused.message
        nonsense = child.request(CommandKind.SET, "{", "nonsense")
        assert nonsense.state == CommandState.REJECTED
        assert child.request(CommandKind.EMPTY_CACHE, command_id="trim").state == CommandState.APPLIED
        child.until_step(change.step + 40)

        paused = child.request(CommandKind.PAUSE, command_id="pause")
        child.until(lambda log: log.run().state == RunState.PAUSED)
        resumed = child.request(CommandKind.RESUME, command_id="resume")
        # The last row of a step is no measure: the run may have paused within a block of unobserved steps.
        assert resumed.step == paused.step
        child.until_step(resumed.step + 30)
        assert child.state == RunState.RUNNING

        child.process.send_signal(signal.SIGTERM)
        assert child.end() == EXIT_OK, child.output
    with LogReader(child.folder.log) as log:
        log.check()
        assert (log.run().state, log.run().state_message) == (RunState.STOPPED, "Stopped by SIGTERM.")
        first, second = log.settings_history()
        assert (first.step, second.step, second.command_id) == (1, change.step, "change")
        assert json.loads(second.changed) == {"batch_size": 16, "amp": "bf16"}
        before, *after = log.steps(change.step - 1, change.step + 8)
        assert (before.samples, before.settings_version) == (32, 1)
        assert {(row.samples, row.settings_version) for row in after} == {(16, 2)}
        assert all(row.flags == StepFlag.TRANSITION for row in after[:5])
    (setting,) = child.events(EventKind.SETTING)
    assert (setting.step, setting.label, setting.command_id) == (change.step, "batch 16, AMP bf16", "change")
    assert len(child.events(EventKind.EMPTY_CACHE)) == 1
    assert not is_alive(child.folder.alive)


def test_a_stop_ends_a_paused_run_and_a_command_too_late_expires(home: Home) -> None:
    with a_child(home) as child:
        child.until_step(1)
        child.request(CommandKind.PAUSE, command_id="pause")
        with ControlLog(child.folder) as control:
            control.send(a_command(CommandKind.STOP, command_id="stop", source="the shell"))
            control.send(a_command(CommandKind.RESUME, command_id="late"))
        assert child.end() == EXIT_OK, child.output
    with LogReader(child.folder.log) as log:
        assert log.run().state_message == "Stopped by request from the shell."
        assert {ack.command_id: ack.state for ack in log.acks()} == {
            "pause": CommandState.APPLIED,
            "stop": CommandState.APPLIED,
            "late": CommandState.EXPIRED,
        }


@pytest.mark.long
def test_reaching_the_cap_is_a_recorded_out_of_memory_error(home: Home) -> None:
    values: dict[str, Any] = {
        "model": "cnn",
        "data": "shapes",
        "image_size": 64,
        "batch_size": 8,
        "oom_policy": "stop",
    }
    with a_child(home, is_fresh=True, memory_cap_gib=0.5, **values) as child:
        child.until_step(10)
        with ControlLog(child.folder) as control:
            control.send(a_command(payload='{"batch_size": 8192}', command_id="huge"))
        assert child.end() == OUT_OF_MEMORY_CODE, child.output
    with LogReader(child.folder.log) as log:
        log.check()
        run, last = log.run(), log.last_steps(5)
        (ack,) = log.acks()
    assert run.state == RunState.OUT_OF_MEMORY
    (event,) = child.events(EventKind.OOM)
    assert event.message == run.state_message
    assert event.message.startswith(f"Out of memory in step {last[-1].step + 1:,}: ")
    detail = json.loads(event.detail)
    assert detail["memory"]["allocated_bytes"] > last[0].allocated_bytes > 0  # type: ignore[operator]
    assert "allocate" in detail["error"]
    assert ack.state == CommandState.APPLIED
    assert last[-1].step == ack.step - 1
    assert "allocate memory" in child.output


def test_an_error_in_training_is_the_runs_last_word(home: Home, tmp_path: Path) -> None:
    pictures = tmp_path / "pictures"
    for label in ("cats", "dogs"):
        (pictures / label).mkdir(parents=True)
        for number in range(40):
            Image.new("RGB", (40, 40), (number, 0, 0)).save(pictures / label / f"{number}.png")
    with a_child(home, data="images", data_path=str(pictures), batch_size=4) as child:
        child.until_step(3)
        for path in pictures.rglob("*.png"):
            path.unlink()
        assert child.end() == 1, child.output
    with LogReader(child.folder.log) as log:
        log.check()
        run = log.run()
    assert run.state == RunState.FAILED
    assert ".png" in run.state_message
    (event,) = child.events(EventKind.ERROR)
    assert event.message == run.state_message
    assert run.state_message in " ".join(child.output.split())


def test_a_request_that_cannot_be_read_trains_nothing(home: Home) -> None:
    folder = home.create(None, resolve({"model": "mlp"}), time.time_ns())
    (folder.path / "request.json").write_text('{"name": "x", "settings": ')
    child = Child(folder)
    assert child.end() == 1
    assert not folder.log.exists()
    assert "does not say what to train" in child.output
    assert "Traceback" not in child.output


@pytest.mark.long
def test_a_stall_is_noticed_with_its_stacks_and_so_is_its_end(home: Home) -> None:
    with a_child(home, stall_after_s=1, slow_loader_ms=2200) as child:
        child.until(lambda log: log.run().state == RunState.STALLED)
        child.until(lambda log: log.run().state == RunState.RUNNING)
        (stall, *_) = child.events(EventKind.STALL)
        assert "No step has ended for" in stall.message
        child.process.send_signal(signal.SIGTERM)
        assert child.end() == EXIT_OK, child.output
    assert "next_batch" in child.output
    assert child.state == RunState.STOPPED


def test_nothing_acknowledged_is_lost_when_it_is_killed(home: Home) -> None:
    with a_child(home) as child:
        child.until_step(50)
        answers = [
            child.request(CommandKind.SET, f'{{"batch_size": {size}}}', f"c{size}") for size in (4, 5, 6)
        ]
        observed = child.read(lambda log: log.extent().last)
        child.process.kill()
        assert child.end() == -signal.SIGKILL
    with LogReader(child.folder.log) as log:
        log.check()
        assert log.acks() == answers
        assert [row.version for row in log.settings_history()] == [1, 2, 3, 4]
        steps = step_numbers(log)
        assert steps == list(range(1, len(steps) + 1))
        assert len(steps) >= observed
        assert log.run().state == RunState.RUNNING
    assert not is_alive(child.folder.alive)


@pytest.mark.long
def test_training_goes_on_while_the_disk_is_full_and_the_log_catches_up(home: Home) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, resource.RLIM_INFINITY))

    with a_child(home, small_files) as child:
        child.until_step(100)
        deadline = time.monotonic() + PATIENCE_S
        while "cannot be written" not in child.output:
            assert time.monotonic() < deadline, child.output
            assert child.process.poll() is None, child.output
            time.sleep(0.05)
        stuck_at = child.read(lambda log: log.extent().last)
        resource.prlimit(child.process.pid, resource.RLIMIT_FSIZE, (-1, -1))
        child.until_step(stuck_at + 200)
        assert child.request(CommandKind.STOP).state == CommandState.APPLIED
        assert child.end() == EXIT_OK, child.output
    with LogReader(child.folder.log) as log:
        log.check()
        steps = step_numbers(log)
    assert steps == list(range(1, len(steps) + 1))
    assert "The log is written again." in child.output


_PROBE = """
import sys
from pathlib import Path
import torch
import harness.run
from harness.store.folder import RunFolder

def probe(*_):
    subnormal = torch.full((4,), 1e-39)
    print("subnormal" if (subnormal * 1).any() else "zero")

harness.run.train = probe
harness.run.execute(RunFolder(Path(sys.argv[1])))
"""


@pytest.mark.parametrize(("flushes", "product"), [(True, "zero"), (False, "subnormal")])
def test_the_cpu_flushes_subnormal_numbers_as_the_setting_says(
    home: Home, flushes: bool, product: str
) -> None:
    folder = home.create(None, resolve({"model": "mlp", "flush_denormal": flushes}), 0)
    assert run_script(_PROBE, str(folder.path)).split() == [product]
