"""Measure whether the heap survives the switch from recording all events to the state alone."""

import json
import signal
import subprocess
import sys
from typing import Any

from tests.gpu.context import Context

SEQUENCES = ("cleared", "uncleared")
"""As `CudaHistory` does it, and as torch's functions would without it."""
_CHILD_S = 30.0


def measure(context: Context) -> None:
    """Run both sequences, each in a process of its own."""
    for sequence in context.pending(SEQUENCES):
        context.put(sequence, run_child([sys.executable, "-m", "tests.gpu.overflow", sequence]))


def run_child(command: list[str], timeout_s: float = _CHILD_S) -> dict[str, Any]:
    """Return how the process ended, and what it printed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return {"end": f"not done in {timeout_s:.0f} s", "ok": False}
    code = done.returncode
    end = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    lines = done.stdout.splitlines()
    counts = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else None
    return {"end": end, "ok": code == 0, "counts": counts, "stderr": done.stderr[-400:]}
