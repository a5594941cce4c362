"""The home of a remote run that cannot be written for a while: the training goes on."""

import errno
import os
import time
from pathlib import Path

import pytest

from harness.errors import HomeFullError
from harness.records.remote import RemoteRequest
from harness.remote.collecting import Collector
from harness.remote.protocol import News, NodeRequest, Pull
from harness.settings.resolve import resolve
from harness.store.appender import LogAppender
from harness.store.home import Home
from harness.store.reader import LogReader
from harness.store.replica import LogReplica, NewRows, read_rows
from harness.store.vital_signs import read_vital_signs
from tests.store_factories import a_run, steps


class EndedNode:
    """The node of a training that has ended after 20 steps; its answers are complete at each request."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.is_closed = False

    def pull(self, request: Pull, timeout_s: float) -> News:
        del timeout_s
        output = b"hello\n"[request.output_bytes :]
        return News("node", request.commands_read, read_rows(self._log, request.marks), output, 20, 0)

    def signal(self, number: int) -> None:
        raise AssertionError(number)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def node(tmp_path: Path) -> EndedNode:
    log = tmp_path / "there.sqlite3"
    with LogAppender(log, a_run()) as appender:
        appender.append(steps(1, 20))
    return EndedNode(log)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def test_rows_are_transferred_again_until_the_disk_has_space(
    home: Home, node: EndedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home.create(None, resolve({"model": "mlp"}), time.time_ns(), remote=RemoteRequest("ray", 0))
    apply, reasons = LogReplica.apply, list[str]()

    def apply_later(replica: LogReplica, new: NewRows) -> None:
        signs = read_vital_signs(folder.alive)
        assert signs is not None
        reasons.append(signs.reason)
        if len(reasons) <= 2:
            raise HomeFullError(folder.log, "database or disk is full")
        assert not node.is_closed
        apply(replica, new)

    monkeypatch.setattr(LogReplica, "apply", apply_later)
    assert Collector(folder, lambda _request: node, sleep=lambda _s: None).run() == 0
    assert reasons[:3] == ["", "database or disk is full", "database or disk is full"]
    assert folder.output_tail() == ["hello"]
    with LogReader(folder.log) as log:
        assert log.extent().steps == 20
    signs = read_vital_signs(folder.alive)
    assert signs is not None
    assert signs.unwritten_since_unix_ns is None


def test_another_error_of_the_home_ends_the_run(
    home: Home, node: EndedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home.create(None, resolve({"model": "mlp"}), time.time_ns(), remote=RemoteRequest("ray", 0))

    def refuse(_replica: LogReplica, _new: NewRows) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    def start(_request: NodeRequest) -> EndedNode:
        return node

    monkeypatch.setattr(LogReplica, "apply", refuse)
    with pytest.raises(PermissionError):
        Collector(folder, start, sleep=lambda _s: None).run()
    assert node.is_closed
