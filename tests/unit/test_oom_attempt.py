"""Parts of a report on an out-of-memory error that cannot be made."""

import sys

import pytest

from harness.watch.oom.errors import attempt


def fail() -> int:
    raise MemoryError


def test_a_part_for_which_there_is_no_memory_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert attempt(fail) is None
    assert capfd.readouterr().err == (
        "stepscope: There was no memory for a part of the report on the out-of-memory error.\n"
    )


def test_a_closed_stderr_is_no_further_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/null", "w", encoding="utf-8") as closed:
        pass
    for stream in (closed, None):
        monkeypatch.setattr(sys, "stderr", stream)
        assert attempt(fail) is None


def test_what_succeeds_is_returned() -> None:
    assert attempt(lambda: 3) == 3
