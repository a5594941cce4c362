"""Memory that was short when a process, or a worker of its loader, was killed."""

import signal
import time
from pathlib import Path

import pytest

from harness.analysis.oom.error import is_of_killed_worker
from harness.analysis.shortage import sentences_on_shortage
from harness.records.memory import LeakRow, LeakSeries, LeakVerdict
from harness.records.run import ExitRow, HostSampleRow, RunState
from harness.store.appender import LogAppender
from harness.store.control import ControlLog
from harness.store.home import Home
from harness.supervisor.inspection import inspect_run
from harness.supervisor.logs import LogCache
from harness.watch.oom.history import read_shortage
from tests.script_factories import an_origin
from tests.store_factories import a_run, steps

MIB, GIB = 1 << 20, 1 << 30
SHORT = (
    "Memory was short: 1.90 GiB of 2.00 GiB were in use at step 20, 410 MiB more than in the sample before. "
    "The kernel's OOM killer is the likely cause."
)


def samples(*used_mib: int | None) -> list[HostSampleRow]:
    """One sample per second, each ten steps after the one before, on a machine of 2 GiB."""
    return [
        HostSampleRow(
            seq,
            seq * 10**9,
            10 * seq,
            20.0,
            95.0,
            GIB,
            GIB,
            None,
            None if used is None else used * MIB,
            2 * GIB,
        )
        for seq, used in enumerate(used_mib, start=1)
    ]


def a_leak(series: LeakSeries, verdict: LeakVerdict = LeakVerdict.LEAK) -> LeakRow:
    return LeakRow(0, 18, series, verdict, 6, 4 * MIB, 4 * MIB, 4 * MIB, GIB, 40, 1024.0, "It grows.", None)


def test_memory_that_would_have_been_full_a_moment_later_was_short() -> None:
    assert sentences_on_shortage(samples(1_536, 1_946), [], on_cpu=True) == SHORT


def test_so_was_memory_that_was_nearly_full_already() -> None:
    text = sentences_on_shortage(samples(1_980, 1_970), [], on_cpu=True)
    assert text.startswith("Memory was short: 1.92 GiB of 2.00 GiB were in use at step 20. The kernel's")


@pytest.mark.parametrize("used", [(), (1_946,), (1_000, 1_300), (1_900, 1_900), (None, 1_990), (1_500, None)])
def test_memory_that_was_not_short_or_is_not_known_is_not_named(used: tuple[int | None, ...]) -> None:
    assert not sentences_on_shortage(samples(*used), [a_leak(LeakSeries.HOST)], on_cpu=True)


@pytest.mark.parametrize(
    ("series", "on_cpu", "is_named"),
    [
        (LeakSeries.ALLOCATED, True, True),
        (LeakSeries.ALLOCATED, False, False),
        (LeakSeries.WORKERS, False, True),
    ],
)
def test_a_leak_of_the_hosts_memory_is_named_with_it(
    series: LeakSeries, on_cpu: bool, is_named: bool
) -> None:
    text = sentences_on_shortage(samples(1_536, 1_946), [a_leak(series)], on_cpu=on_cpu)
    assert text.startswith(SHORT)
    assert ("had grown by 4.00 MiB per step since step 6" in text) is is_named
    watched = [a_leak(series, LeakVerdict.WATCH)]
    assert sentences_on_shortage(samples(1_536, 1_946), watched, on_cpu=on_cpu) == SHORT


@pytest.mark.parametrize(
    ("returncode", "state", "is_named"),
    [
        (None, RunState.LOST, True),
        (-signal.SIGKILL, RunState.KILLED, True),
        (-signal.SIGSEGV, RunState.KILLED, False),
    ],
)
def test_a_process_that_was_killed_while_memory_was_short_is_said_to_be(
    tmp_path: Path, returncode: int | None, state: RunState, is_named: bool
) -> None:
    folder = Home(tmp_path).create_for_script(None, an_origin(), 0)
    log = LogAppender(folder.log, a_run(folder.run_id, "train-1")._replace(state="running"))
    log.append(steps(1, 30), samples(1_536, 1_946))
    log.close()
    if returncode is not None:
        with ControlLog(folder) as control:
            control.record_exit(ExitRow(1, time.time_ns(), returncode))
    status = inspect_run(folder, LogCache(), time.time()).status
    assert status.state is state
    assert (SHORT in status.message) is is_named


def test_a_workers_end_is_noticed_some_seconds_later(tmp_path: Path) -> None:
    folder = Home(tmp_path).create_for_script(None, an_origin(), 0)
    log = LogAppender(folder.log, a_run(folder.run_id, "train-1"))
    log.append((), samples(1_536, 1_946, 600, 600, 600, 610))
    log.close()
    assert read_shortage(folder.log, on_cpu=True) == SHORT
    assert read_shortage(tmp_path / "missing", on_cpu=True) == ""


@pytest.mark.parametrize(
    ("text", "is_killed"),
    [
        ("DataLoader worker (pid(s) 23773, 23774) exited unexpectedly", True),
        ("DataLoader worker (pid 23910) is killed by signal: Killed. ", True),
        ("Loader worker 4242 was killed by signal 9; if the machine ran out of memory …", True),
        ("DataLoader worker (pid 4242) is killed by signal: Segmentation fault. ", False),
        ("DataLoader worker (pid 4242) is killed by signal: Terminated. ", False),
        ("Loader worker 4242 exited with code 1", False),
        ("the worker exited unexpectedly", False),
    ],
)
def test_the_errors_of_killed_workers_are_recognized(text: str, is_killed: bool) -> None:
    assert is_of_killed_worker(text) is is_killed
