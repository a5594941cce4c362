"""What this machine can do, asked of `python -m harness doctor --json` in a child process.

The dashboard never imports torch; the doctor does, for a second or more, so it runs beside the page, once.
"""

import subprocess
import sys
import threading

import streamlit as st

from harness.device.report import Report, from_json
from harness.errors import StepscopeError

_TIMEOUT_S = 90.0


class Examination:
    """One run of the doctor, in a child process watched by a thread of its own."""

    def __init__(self) -> None:
        self._report: Report | None = None
        self._problem: str | None = None
        self._done = threading.Event()
        threading.Thread(target=self._run, name="stepscope-doctor", daemon=True).start()

    @property
    def is_done(self) -> bool:
        """Whether the doctor has answered, or will not."""
        return self._done.is_set()

    @property
    def report(self) -> Report | None:
        """What was found; None while it is looked for, or when the doctor failed."""
        return self._report

    @property
    def problem(self) -> str | None:
        """Why there is no report, in one sentence."""
        return self._problem

    def wait(self, timeout_s: float) -> bool:
        """Wait for the answer, `timeout_s` at most; whether it is there."""
        return self._done.wait(timeout_s)

    def _run(self) -> None:
        command = [sys.executable, "-P", "-m", "harness", "doctor", "--json"]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                timeout=_TIMEOUT_S,
                check=False,
            )
            self._report = from_json(done.stdout)
        except subprocess.TimeoutExpired:
            self._problem = (
                f"The doctor gave no answer within {_TIMEOUT_S:.0f} s; run `stepscope doctor` in a shell."
            )
        except OSError as error:
            self._problem = f"The doctor could not be started: {error.strerror}."
        except StepscopeError:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            self._problem = f"The doctor failed: {last}; run `stepscope doctor` in a shell."
        finally:
            self._done.set()


@st.cache_resource(show_spinner=False)
def examination() -> Examination:
    """The examination of this machine, begun at the first call and shared by all pages."""
    return Examination()


def examine_again() -> None:
    """Forget what was found, so that the next call looks again."""
    examination.clear()
