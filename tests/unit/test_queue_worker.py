"""The worker of the queue over real processes and locks; the training itself is a stand-in."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import LogForeignError
from harness.queue.adding import add_script, ensure_worker, needs_worker
from harness.queue.files import worker_lock
from harness.records.queue import QueueState
from harness.records.remote import RemoteRequest
from harness.records.run import RunState
from harness.records.script import ScriptOrigin
from harness.store.liveness import is_alive
from tests.queue_factories import QueueBench, a_device, a_gpu
from tests.supervision import ROOT, SETTINGS, lock_holder_process, until

pytestmark = pytest.mark.slow


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[QueueBench]:
    bench = QueueBench(tmp_path)
    yield bench
    bench.bench.close()


@pytest.fixture
def _gpus_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor starts runs on the GPUs of a test."""
    monkeypatch.setattr("harness.supervisor.supervisor.refuse_absent", lambda _: None)


def hellos(queue: QueueBench) -> int:
    """The number of processes that have trained in the home."""
    outputs = [folder.output for folder in queue.home.runs() if folder.output.exists()]
    return sum(path.read_text().count("hello from the training process") for path in outputs)


def test_runs_start_one_after_the_other_in_their_order(queue: QueueBench) -> None:
    queue.bench.mode = "finish"
    for name in ("first", "second", "third"):
        queue.add(name)
    assert queue.worker.run()
    assert queue.names() == ["first", "second", "third"]
    starts = [queue.bench.supervisor.summary(queue.run(name)).created_unix_ns for name in queue.names()]
    ends = [queue.bench.wait_for(queue.run(name), RunState.FINISHED) for name in queue.names()]
    assert starts == sorted(starts)
    assert len(ends) == hellos(queue) == 3
    assert queue.log.entries() == []


def test_the_next_run_waits_for_the_one_before_it_and_says_so(queue: QueueBench) -> None:
    queue.bench.mode = "obey"
    queue.add("first")
    queue.add("second")
    assert queue.worker.tick()
    queue.bench.wait_for(queue.run("first"), RunState.RUNNING)
    assert queue.names() == ["first"]
    assert queue.reasons() == {"second": "waits for cpu: run 'first' is on it"}
    queue.bench.supervisor.stop(queue.run("first"))
    assert not queue.worker.tick()
    assert queue.names() == ["first", "second"]


def test_a_run_that_somebody_started_by_hand_occupies_its_device(queue: QueueBench) -> None:
    folder = queue.bench.start("obey", "by hand")
    queue.add("queued")
    assert queue.worker.tick()
    assert queue.reasons() == {"queued": "waits for cpu: run 'by hand' is on it"}
    queue.bench.wait_for(folder, RunState.RUNNING)
    assert queue.another().tick()
    queue.bench.supervisor.stop(folder)
    assert not queue.worker.tick()


def test_a_run_on_another_machine_occupies_no_device_here(queue: QueueBench) -> None:
    queue.bench.mode = "obey"
    folder = queue.bench.supervisor.start("far away", SETTINGS, remote=RemoteRequest("ray"))
    queue.bench.wait_for(folder, RunState.RUNNING)
    queue.add("here")
    assert not queue.worker.tick()
    assert queue.names() == ["far away", "here"]


@pytest.mark.usefixtures("_gpus_exist")
def test_each_gpu_has_one_run_named_by_its_uuid(queue: QueueBench) -> None:
    queue.bench.mode = "obey"
    queue.machine.now = [a_device(a_gpu(0)), a_device(a_gpu(1))]
    for name in ("a", "b", "c"):
        queue.add(name)
    assert queue.worker.tick()
    devices = [queue.run(name).request().settings_json for name in ("a", "b")]
    assert ['"GPU-00"' in devices[0], '"GPU-11"' in devices[1]] == [True, True]
    assert queue.reasons() == {"c": "waits for cuda:0: run 'a' is on it; cuda:1: run 'b' is on it"}


@pytest.mark.parametrize(
    "point",
    [
        "begun",
        pytest.param("folder", marks=pytest.mark.long),
        "process",
        pytest.param("ended", marks=pytest.mark.long),
    ],
)
def test_a_worker_that_is_killed_mid_start_loses_no_run_and_starts_none_twice(
    queue: QueueBench, point: str
) -> None:
    queue.bench.mode = "finish"
    for name in ("first", "second"):
        queue.add(name)
    script = ROOT / "tests" / "queue_process.py"
    worker = subprocess.run(
        [sys.executable, str(script), str(queue.home.path), point],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        timeout=60,
    )
    assert worker.returncode == -signal.SIGKILL
    assert queue.log.entries()[0].starting_on == "cpu"
    assert queue.worker.run()
    assert queue.names() == ["first", "second"]
    for name in queue.names():
        queue.bench.wait_for(queue.run(name), RunState.FINISHED)
    assert hellos(queue) == 2


def test_only_one_of_two_workers_starts_runs(queue: QueueBench) -> None:
    queue.add("first")
    with lock_holder_process(worker_lock(queue.home)):
        assert not needs_worker(queue.home)
        assert not ensure_worker(queue.home)
        assert not queue.worker.run()
        assert queue.names() == []
    assert needs_worker(queue.home)


def test_a_full_disk_is_waited_for(queue: QueueBench) -> None:
    queue.bench.mode = "finish"
    queue.add("first")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        assert queue.worker.tick()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert queue.names() == []
    assert queue.worker.run()
    assert queue.names() == ["first"]


def test_an_entry_whose_model_is_gone_is_blocked_with_the_reason_and_the_next_starts(
    queue: QueueBench, tmp_path: Path
) -> None:
    queue.bench.mode = "finish"
    script = tmp_path / "train.py"
    script.write_text("print('never')")
    origin = ScriptOrigin("train.py", (), str(tmp_path), sys.executable, None, None)
    add_script(queue.home, origin, "gone", "auto")
    queue.add("next")
    script.unlink()
    assert queue.worker.run()
    assert queue.names() == ["next"]
    (row,) = queue.log.entries()
    assert (row.name, row.state) == ("gone", QueueState.BLOCKED)
    assert f"There is no script {script}" in row.reason


def test_an_entry_that_fits_nowhere_is_blocked_until_it_is_forced(queue: QueueBench) -> None:
    queue.bench.mode = "finish"
    queue.forecasts.peaks = {64: 64}
    entry_id = queue.add("huge", 64)
    assert queue.worker.run()
    (row,) = queue.log.entries()
    assert row.state == QueueState.BLOCKED
    assert "cpu: predicted 64.5 GiB, 16.0 GiB at most" in row.reason
    queue.log.force(entry_id)
    assert queue.worker.run()
    assert queue.names() == ["huge"]


def test_a_name_that_was_taken_meanwhile_blocks_its_entry(queue: QueueBench) -> None:
    queue.bench.mode = "finish"
    queue.add("same")
    queue.add("same")
    assert queue.worker.run()
    (row,) = queue.log.entries()
    assert row.state == QueueState.BLOCKED
    assert "already a run named 'same'" in row.reason
    assert row.reason.endswith("or delete that run. Then resume the entry.")


def test_nothing_starts_while_the_queue_or_the_entry_is_paused(queue: QueueBench) -> None:
    queue.bench.mode = "finish"
    first = queue.add("first")
    queue.add("second")
    queue.log.pause(is_paused=True)
    assert queue.worker.run()
    assert queue.names() == []
    queue.log.pause(is_paused=False)
    queue.log.set_state(first, QueueState.PAUSED)
    assert queue.worker.run()
    assert queue.names() == ["second"]
    queue.log.set_state(first, QueueState.WAITING)
    assert queue.worker.run()
    assert queue.names() == ["second", "first"]


@pytest.mark.usefixtures("_gpus_exist")
def test_a_device_that_vanishes_is_waited_for_by_name(queue: QueueBench) -> None:
    queue.bench.mode = "finish"
    gpu = a_device(a_gpu(0))
    queue.machine.now = [gpu._replace(free_bytes=None, problem="the driver does not list it any more")]
    queue.add("first")
    assert queue.worker.tick()
    assert queue.reasons() == {"first": "waits for cuda:0: the driver does not list it any more"}
    queue.machine.now = [gpu]
    assert not queue.worker.tick()
    assert queue.names() == ["first"]


def test_a_clock_that_jumps_changes_no_order(queue: QueueBench, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.bench.mode = "finish"
    for name, now_unix_ns in (("first", 2**61), ("second", 1)):
        monkeypatch.setattr("time.time_ns", lambda now=now_unix_ns: now)
        queue.add(name)
    monkeypatch.undo()
    assert [row.name for row in queue.log.entries()] == ["first", "second"]
    assert queue.worker.tick()
    assert queue.names() == ["first"]


def test_an_invalid_queue_ends_the_worker_with_the_reason(queue: QueueBench) -> None:
    queue.home.check_writable()
    (queue.home.path / "queue.sqlite3").write_bytes(b"something else entirely" * 9)
    with pytest.raises(LogForeignError):
        queue.worker.run()
    assert not is_alive(worker_lock(queue.home))


def test_a_script_runs_in_its_folder_with_its_arguments_and_sees_no_other_device(
    queue: QueueBench, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\nprint(sys.argv, os.getcwd(), repr(os.environ['CUDA_VISIBLE_DEVICES']))"
    )
    origin = ScriptOrigin("train.py", ("--lr", "0.1"), str(tmp_path), sys.executable, None, None)
    add_script(queue.home, origin, None, "cpu")
    assert queue.worker.run()
    assert queue.names() == ["train-1"]
    folder = queue.run("train-1")
    queue.bench.wait_for(folder, RunState.FINISHED)
    assert f"['train.py', '--lr', '0.1'] {tmp_path} ''" in "\n".join(folder.output_tail())


def test_the_worker_that_an_addition_starts_ends_when_nothing_waits(
    queue: QueueBench, tmp_path: Path
) -> None:
    assert not ensure_worker(queue.home)
    (tmp_path / "train.py").write_text("print('trained')")
    origin = ScriptOrigin("train.py", (), str(tmp_path), sys.executable, None, None)
    add_script(queue.home, origin, "first", "cpu")
    assert ensure_worker(queue.home)
    until(queue.log.entries, lambda entries: not entries)
    until(lambda: is_alive(worker_lock(queue.home)), lambda alive: not alive)
    queue.bench.wait_for(queue.run("first"), RunState.FINISHED)
