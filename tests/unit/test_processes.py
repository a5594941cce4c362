"""Test which process belongs to a run folder, and that no other one is signaled; with real processes and
locks."""

import errno
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import identity
from harness.errors import RunStateError
from harness.records.run import RunState
from harness.store.appender import LogAppender
from harness.store.folder import RunFolder
from harness.store.inserts import StateChange
from harness.store.liveness import is_alive
from harness.supervisor.processes import RunProcess, find_process
from harness.supervisor.signals import request_stacks, signal_run
from tests.script_factories import an_origin
from tests.store_factories import a_run, an_event, steps
from tests.supervision import ROOT, SETTINGS, SupervisorBench, lock_holder_process, until

pytestmark = pytest.mark.slow


def _running(folder: RunFolder) -> RunFolder:
    """Give the run a log whose last word is that it trains."""
    row = a_run(folder.run_id, "running")._replace(settings=folder.request().settings_json)
    with LogAppender(folder.log, row) as log:
        log.append(steps(1, 5))
        event = an_event("Training.", 5)
        log.append(states=[StateChange(RunState.RUNNING, "Training.", time.time_ns(), event)], durable=True)
    return folder


def _of(process: "subprocess.Popen[str]") -> identity.Identity:
    result = identity.identify(process.pid, "nonce")
    assert result is not None
    return result


def test_a_copy_of_a_live_run_is_lost_and_its_stop_leaves_the_original_alone(bench: SupervisorBench) -> None:
    folder = bench.start("obey", "original")
    bench.wait_for(folder, RunState.RUNNING)
    runs = folder.path.parent
    copies = [RunFolder(runs / "copied"), RunFolder(runs / "hard-linked")]
    shutil.copytree(folder.path, copies[0].path)
    shutil.copytree(folder.path, copies[1].path, copy_function=os.link)
    for copy in copies:
        assert find_process(copy) is None
        assert bench.supervisor.status(copy).state is RunState.LOST
        sentence = f"No signal was sent: process {bench.processes[0].pid}, .* trains {folder.path}"
        with pytest.raises(RunStateError, match=sentence):
            bench.supervisor.stop(copy)
        with pytest.raises(RunStateError, match=sentence):
            bench.supervisor.request_stop(copy)
        assert not signal_run(copy, signal.SIGKILL)
        bench.supervisor.delete(copy)
        assert not copy.path.exists()
    assert bench.supervisor.status(folder).state is RunState.RUNNING
    assert bench.processes[0].poll() is None
    assert find_process(folder) == RunProcess(
        bench.processes[0].pid, identity.start_ticks(bench.processes[0].pid), is_locked=True
    )
    assert signal_run(folder, signal.SIGKILL)
    assert bench.processes[0].wait() == -signal.SIGKILL


@pytest.mark.parametrize("is_moved", [True, False], ids=["renamed", "deleted"])
def test_a_copy_in_the_place_of_a_live_folder_is_lost_and_its_stop_signals_nobody(
    bench: SupervisorBench, is_moved: bool
) -> None:
    folder = bench.start("obey", "original")
    bench.wait_for(folder, RunState.RUNNING)
    moved = RunFolder(folder.path.with_name("moved"))
    shutil.copytree(folder.path, folder.path.with_name("copy"))
    folder.path.rename(moved.path)
    folder.path.with_name("copy").rename(folder.path)
    where = str(moved.path)
    if not is_moved:
        shutil.rmtree(moved.path)
        where += " (deleted)"
    assert find_process(folder) is None
    with pytest.raises(RunStateError, match=re.escape(f"names, trains {where}.")):
        bench.another().stop(folder)
    assert not signal_run(folder, signal.SIGKILL)
    assert bench.processes[0].poll() is None
    if is_moved:
        assert find_process(moved) is not None


def test_an_identity_that_somebody_wrote_leads_to_no_signal(bench: SupervisorBench, tmp_path: Path) -> None:
    folder = _running(bench.home.create("crafted", SETTINGS, time.time_ns()))
    victim = subprocess.Popen(["sleep", "600"], start_new_session=True, text=True)
    try:
        identity.write_identity(folder.process, _of(victim))
        with pytest.raises(RunStateError, match=f"process {victim.pid}, .* does not train this folder"):
            bench.supervisor.stop(folder)
        assert not signal_run(folder, signal.SIGKILL)
        assert not request_stacks(folder)
        assert bench.supervisor.status(folder).state is RunState.LOST
        assert victim.poll() is None
        bench.supervisor.delete(folder)
    finally:
        victim.kill()
        victim.wait()


def test_a_lock_elsewhere_behind_a_link_is_not_this_runs(bench: SupervisorBench, tmp_path: Path) -> None:
    folder = bench.home.create("linked", SETTINGS, time.time_ns())
    with lock_holder_process(tmp_path / "elsewhere") as (process, _):
        folder.alive.symlink_to(tmp_path / "elsewhere")
        assert is_alive(tmp_path / "elsewhere")
        assert find_process(folder) is None
        assert not signal_run(folder, signal.SIGKILL)
        folder.alive.unlink()
        os.mkfifo(folder.alive)
        assert find_process(folder) is None
        assert process.poll() is None


def test_a_run_that_starts_up_is_known_by_its_command_line_also_through_links(
    bench: SupervisorBench, tmp_path: Path
) -> None:
    folder = bench.start("slow")
    ticks = identity.start_ticks(bench.processes[0].pid)
    (tmp_path / "link").symlink_to(folder.path)
    for path in (folder.path, tmp_path / "link"):
        assert find_process(RunFolder(path)) == RunProcess(bench.processes[0].pid, ticks, is_locked=False)
    me = identity.identify(bench.processes[0].pid, "nonce")
    assert me is not None
    for wrong in (me._replace(start_ticks=me.start_ticks - 1), me._replace(boot_id="another boot"), me):
        identity.write_identity(folder.process, wrong)  # The last one's nonce is wrong.
        assert not signal_run(folder, signal.SIGKILL)
    assert bench.processes[0].poll() is None


def test_a_lock_holder_with_another_nonce_is_left_alone_with_a_sentence(bench: SupervisorBench) -> None:
    folder = bench.start("obey")
    bench.wait_for(folder, RunState.RUNNING)
    written = identity.read_identity(folder.process)
    assert written is not None
    identity.write_identity(folder.process, written._replace(nonce="another"))
    with pytest.raises(RunStateError, match=f"Process {written.pid} holds the lock .* nonces differ"):
        signal_run(folder, signal.SIGKILL)
    assert bench.processes[0].poll() is None


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_process_of_another_user_is_not_signalled(bench: SupervisorBench) -> None:
    folder = bench.home.create("theirs", SETTINGS, time.time_ns())
    reading, writing = os.pipe()
    with folder.alive.open("w") as file:
        child = os.fork()
        if child == 0:
            os.setuid(65_534)
            fcntl.lockf(file, fcntl.LOCK_EX)
            os.write(writing, b"held")
            signal.pause()
    try:
        assert os.read(reading, 4) == b"held"
        with pytest.raises(RunStateError, match=rf"Process {child} .* another user \(uid 65534\)"):
            signal_run(folder, signal.SIGKILL)
        assert identity.start_ticks(child) is not None
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)


_FROM_A_CONTAINER = """
import signal, sys
from pathlib import Path
from harness.store.folder import RunFolder
from harness.store.inserts import StateChange
from harness.supervisor.processes import find_process
from harness.supervisor.signals import signal_run
folder = RunFolder(Path(sys.argv[1]))
print(find_process(folder), signal_run(folder, signal.SIGKILL))
"""


def test_a_process_outside_the_container_is_seen_but_out_of_reach(bench: SupervisorBench) -> None:
    unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no namespace of process ids can be made here")
    folder = bench.home.create("outside", SETTINGS, time.time_ns())
    with lock_holder_process(folder.alive) as (process, _):
        done = subprocess.run(
            [*unshare, sys.executable, "-c", _FROM_A_CONTAINER, str(folder.path)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
        assert done.stdout.strip() == f"{RunProcess(None, None, is_locked=True)} False", done.stderr
        assert process.poll() is None


def _refuse_groups(send: Callable[..., None]) -> Callable[..., None]:
    def before_6_9(descriptor: int, number: int, info: None = None, flags: int = 0) -> None:
        if flags:
            raise OSError(errno.EINVAL, "Invalid argument")
        send(descriptor, number, info, flags)

    return before_6_9


@pytest.mark.parametrize("system", ["Linux 6.9", "Linux 5.3", "no pidfd"])
def test_a_signal_reaches_the_workers_in_the_runs_group(
    bench: SupervisorBench, monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    if system == "Linux 5.3":
        monkeypatch.setattr(signal, "pidfd_send_signal", _refuse_groups(signal.pidfd_send_signal))
    elif system == "no pidfd":
        monkeypatch.delattr(os, "pidfd_open")
    folder = bench.home.create("group", SETTINGS, time.time_ns())
    with lock_holder_process(folder.alive) as (process, worker):
        assert signal_run(folder, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        until(lambda: identity.start_ticks(worker), lambda ticks: ticks is None)
        assert not signal_run(folder, signal.SIGKILL)


def test_a_process_that_leads_no_group_is_signalled_alone(bench: SupervisorBench) -> None:
    folder = bench.home.create("alone", SETTINGS, time.time_ns())
    with lock_holder_process(folder.alive, leads_group=False) as (process, worker):
        assert signal_run(folder, signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM
        assert identity.start_ticks(worker) is not None


def test_a_script_is_signalled_alone_and_its_own_handlers_are_left_to_it(
    bench: SupervisorBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.supervisor.signals.handles_signal", lambda *_: True)
    folder = bench.home.create_for_script(None, an_origin(), time.time_ns())
    with lock_holder_process(folder.alive) as (process, worker):
        assert not request_stacks(folder)
        assert process.poll() is None
        assert signal_run(folder, signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM
        assert identity.start_ticks(worker) is not None


def test_nothing_is_sent_when_another_process_has_the_pid_at_the_last_moment(bench: SupervisorBench) -> None:
    folder = bench.home.create("reused", SETTINGS, time.time_ns())
    with lock_holder_process(folder.alive) as (process, _):
        result = find_process(folder)
        assert result is not None
        assert result.start_ticks is not None
        for after in (None, result._replace(start_ticks=result.start_ticks + 1)):
            answers = iter([result, after])
            assert not signal_run(folder, signal.SIGKILL, find=lambda _: next(answers))  # noqa: B023
        assert process.poll() is None
