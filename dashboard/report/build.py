"""The report of runs from their folders, for the shell and for downloads."""

import time
from collections.abc import Sequence

from dashboard.report.render import render
from harness.store.folder import RunFolder
from harness.supervisor import Supervisor
from harness.supervisor.reporting import read_report


def report_of(supervisor: Supervisor, folders: Sequence[RunFolder]) -> str:
    """Return the report of these runs; several are compared. Raises LogError."""
    reports = [read_report(folder, supervisor.summary(folder)) for folder in folders]
    return render(reports, time.time_ns())
