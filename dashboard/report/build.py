"""The report of runs from their folders, for the shell and for downloads."""

import time
from collections.abc import Sequence

from dashboard.report.markup import paragraph
from dashboard.report.render import render
from harness.errors import StepscopeError
from harness.store.folder import RunFolder
from harness.supervisor import Supervisor
from harness.supervisor.reporting import read_report


def report_of(supervisor: Supervisor, folders: Sequence[RunFolder]) -> str:
    """Return the report of these runs; several are compared. Raises LogError."""
    reports = [read_report(folder, supervisor.summary(folder)) for folder in folders]
    return render(reports, time.time_ns())


def downloaded(supervisor: Supervisor, folders: Sequence[RunFolder]) -> bytes:
    """Return the report as bytes, or a page with the reason why there is none: a download that has begun
    cannot be refused."""
    try:
        return report_of(supervisor, folders).encode()
    except StepscopeError as error:
        return f"<!doctype html><meta charset=utf-8>{paragraph(str(error))}".encode()
