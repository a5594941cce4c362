"""A message of ours on a standard error that cannot be written leaves the training alone."""

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.notices import print_notice
from harness.watch.guard import FailureGuard
from harness.watch.oom.errors import attempt

ROOT = Path(__file__).parents[2]


class WithoutFlush:
    """A stream that a script puts in place of standard error, with all that Python itself needs."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)


def a_closed_stream() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


def a_failing_device() -> None:
    raise RuntimeError("the device failed")


def short_of_memory() -> None:
    raise MemoryError


def drop_a_job() -> None:
    FailureGuard(lambda _name, _error: None).drop("job", ValueError("broken"))


def run_a_failing_job() -> None:
    FailureGuard(lambda _name, _error: None).run("job", a_failing_device)


@pytest.mark.parametrize("stream", [None, a_closed_stream(), WithoutFlush(), object()])
@pytest.mark.parametrize(
    "act",
    [drop_a_job, run_a_failing_job, lambda: attempt(a_failing_device), lambda: attempt(short_of_memory)],
)
def test_an_error_of_the_watch_raises_nothing_where_it_cannot_be_printed(
    act: Callable[[], object],
    stream: object,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    act()
    assert capsys.readouterr().out == ""


def test_a_stream_without_a_flush_has_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = WithoutFlush()
    monkeypatch.setattr(sys, "stderr", stream)
    print_notice("something")
    assert stream.text == "stepscope: something\n"


FULL = """
from harness.watch.guard import FailureGuard
FailureGuard(lambda _name, _error: None).drop("job", ValueError("broken"))
print("trained")
"""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_full_disk_under_standard_error_does_not_end_the_process() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", FULL],
            stdout=subprocess.PIPE,
            stderr=full,
            cwd=ROOT,
            check=False,
            text=True,
        )
    assert (done.returncode, done.stdout) == (0, "trained\n")
