"""The doctor in a child process: listing GPUs imports torch and takes memory on them as long as it lives."""

import subprocess
import sys

DOCTOR_TIMEOUT_S = 90.0


def run_doctor() -> "subprocess.CompletedProcess[str]":
    """Run `python -m harness doctor --json` and return its output, in which libraries may have written bytes
    that are not UTF-8. Raises OSError, and TimeoutExpired after `DOCTOR_TIMEOUT_S`."""
    return subprocess.run(
        (sys.executable, "-P", "-m", "harness", "doctor", "--json"),
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        timeout=DOCTOR_TIMEOUT_S,
        check=False,
    )
