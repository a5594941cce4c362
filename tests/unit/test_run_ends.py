"""The end of a run that has recorded none, from what its log and its folder have."""

import os
from pathlib import Path

import pytest

from harness.records.run import RunState
from harness.store.appender import LogAppender
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.supervisor import Supervisor
from tests.store_factories import a_host_sample, a_run, steps
from tests.supervision import SETTINGS

_HOUR_NS = 3_600_000_000_000


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def a_lost_run(home: Home, last_step: int, samples: int) -> RunFolder:
    """A run without a process, with steps of 2 ms and samples of the host from second 0 on."""
    folder = home.create("lost", SETTINGS, a_run().started_unix_ns)
    run = a_run(folder.run_id)._replace(state=RunState.RUNNING)
    with LogAppender(folder.log, run) as appender:
        appender.append(steps(1, last_step), rows=[a_host_sample(seq, 1) for seq in range(samples)])
    return folder


def lasted_s(home: Home, folder: RunFolder) -> float:
    (entry,) = Supervisor(home).entries()
    assert (entry.run_id, entry.state) == (folder.run_id, RunState.LOST)
    assert entry.ended_unix_ns is not None
    assert entry.started_unix_ns is not None
    return (entry.ended_unix_ns - entry.started_unix_ns) / 1e9


def test_a_lost_run_ends_with_its_newest_step_whatever_the_time_of_its_file(home: Home) -> None:
    folder = a_lost_run(home, 1_000, 1)
    now_ns = folder.log.stat().st_mtime_ns + _HOUR_NS
    os.utime(folder.log, ns=(now_ns, now_ns))
    assert lasted_s(home, folder) == 2.0


def test_a_lost_run_ends_with_its_newest_sample_within_a_long_step(home: Home) -> None:
    assert lasted_s(home, a_lost_run(home, 1_000, 31)) == 30.0
