"""The doctor of the dashboard and of the queue: what they make of the output of its process."""

import sys
from pathlib import Path

import pytest

from dashboard.data.doctor import DoctorRun
from harness.device.doctor.report import DoctorReport, to_json
from harness.queue import machine
from tests.supervision import PATIENCE_S


def a_process(path: Path, monkeypatch: pytest.MonkeyPatch, output: str) -> None:
    """Have the doctor's process print `output`, and a line that is not UTF-8 beside it."""
    path.write_text(f"#!/bin/sh\nprintf 'error in n\\344me.py\\n' >&2\necho '{output}'\n")
    path.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(path))


def test_a_report_beside_lines_that_are_not_utf_8_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_process(tmp_path / "doctor", monkeypatch, to_json(DoctorReport((), ())))
    run = DoctorRun()
    assert run.wait(PATIENCE_S)
    assert (run.report, run.problem) == (DoctorReport((), ()), None)
    monkeypatch.setattr(machine, "may_exist", lambda _kind: True)
    assert machine.examine_devices() == []


def test_an_error_that_is_not_utf_8_is_the_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_process(tmp_path / "doctor", monkeypatch, "")
    run = DoctorRun()
    assert run.wait(PATIENCE_S)
    assert run.report is None
    assert run.problem == "The doctor failed: error in n\ufffdme.py; run `stepscope doctor` in a shell."
