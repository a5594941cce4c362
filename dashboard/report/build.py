"""The report of runs from their folders, for the shell and for downloads."""

import time
from collections.abc import Sequence

from dashboard.report.render import render
from harness.store.folder import RunFolder
from harness.supervisor import Supervisor
from harness.supervisor.equal_losses import with_equal_losses
from harness.supervisor.reporting import read_report


def report_of(supervisor: Supervisor, folders: Sequence[RunFolder]) -> str:
    """Return the report of these runs; several are compared. Raises LogError."""
    reports = [read_report(folder, supervisor.summary(folder)) for folder in folders]
    facts = with_equal_losses(folders, [report.facts for report in reports])
    equal = [report._replace(facts=of_run) for report, of_run in zip(reports, facts, strict=True)]
    return render(equal, time.time_ns())
