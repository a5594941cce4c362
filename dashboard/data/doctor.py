"""The doctor's report on this machine, from `python -m harness doctor --json` in a child process.

The dashboard never imports torch. The doctor does, which takes a second or more, so it runs once, in the
background.
"""

import subprocess
import threading

import streamlit as st

from harness.device.doctor.child import DOCTOR_TIMEOUT_S, run_doctor
from harness.device.doctor.report import DoctorReport, from_json
from harness.errors import StepscopeError


class DoctorRun:
    """One run of the doctor, in a child process managed by its own thread."""

    def __init__(self) -> None:
        self._report: DoctorReport | None = None
        self._problem: str | None = None
        self._done = threading.Event()
        threading.Thread(target=self._run, name="stepscope-doctor", daemon=True).start()

    @property
    def is_done(self) -> bool:
        """True if the doctor has finished or failed."""
        return self._done.is_set()

    @property
    def report(self) -> DoctorReport | None:
        """The report; None while the doctor runs, or if it failed."""
        return self._report

    @property
    def problem(self) -> str | None:
        """Reason for a missing report, in one sentence."""
        return self._problem

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the doctor for at most `timeout_s`; return whether it has ended."""
        return self._done.wait(timeout_s)

    def _run(self) -> None:
        try:
            done = run_doctor()
            self._report = from_json(done.stdout)
        except subprocess.TimeoutExpired:
            limit = f"{DOCTOR_TIMEOUT_S:.0f} s"
            self._problem = f"The doctor did not finish within {limit}; run `stepscope doctor` in a shell."
        except OSError as error:
            self._problem = f"The doctor could not be started: {error.strerror}."
        except StepscopeError:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            self._problem = f"The doctor failed: {last}; run `stepscope doctor` in a shell."
        finally:
            self._done.set()


@st.cache_resource(show_spinner=False)
def doctor_run() -> DoctorRun:
    """Return the run of the doctor, started by the first call and shared by all pages."""
    return DoctorRun()


def restart_doctor() -> None:
    """Discard the report, so that the next call runs the doctor again."""
    doctor_run.clear()
