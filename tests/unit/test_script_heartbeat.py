"""The heartbeat of a script before its training begins."""

import errno
import os
from pathlib import Path

import pytest

from harness.attach import launch
from harness.attach.launch import Heartbeat
from harness.store.liveness import Liveness
from tests.supervision import until


class ClosedLiveness(Liveness):
    """Every beat fails, as in a script that has closed all files."""

    beats = 0

    def beat(self) -> None:
        self.beats += 1
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def test_a_beat_that_fails_is_followed_by_others_and_prints_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_BEAT_S", 0.02)
    path = tmp_path / "alive"
    with ClosedLiveness(path, os.open(path, os.O_RDWR | os.O_CREAT)) as alive, Heartbeat(alive):
        until(lambda: alive.beats, lambda beats: beats >= 2)
    assert capsys.readouterr().err == ""
