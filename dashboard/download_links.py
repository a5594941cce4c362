"""Links to downloads, which routes of the server's own answer (`dashboard.download_routes`).

Streamlit's download button does not do for a page that is drawn anew each second: the file that it makes is
removed with the second run of any page after it, often before the browser has requested it.
"""

from collections.abc import Sequence
from typing import Literal
from urllib.parse import quote, urlencode

import streamlit as st

from harness.export import ExportFormat
from harness.store.folder import RunFolder

CAPTURES = "/download/capture"
TABLES = "/download/tables"
REPORT = "/download/report"


def capture_link(label: str, folder: RunFolder, file: str, help: str) -> None:
    """Draw the link to a capture file of a run: a trace or a raw snapshot."""
    _link(label, f"{CAPTURES}/{quote(folder.run_id)}/{quote(file)}", help, ":material/download:")


def tables_link(label: str, run_ids: Sequence[str], form: ExportFormat) -> None:
    """Draw the link to a zip file with the tables of runs, which is made on request."""
    _link(label, f"{TABLES}?{urlencode([('format', form.value), *_runs(run_ids)])}", None, None, "stretch")


def report_link(run_ids: Sequence[str]) -> None:
    """Draw the link to the report of a run or of a comparison, which is written on request."""
    what = "this run" if len(run_ids) == 1 else "this comparison"
    text = f"Charts, memory, verdicts, operators and settings of {what}: one HTML file that opens offline."
    _link("Report", f"{REPORT}?{urlencode(_runs(run_ids))}", text, ":material/description:")


def _runs(run_ids: Sequence[str]) -> list[tuple[str, str]]:
    return [("run", run_id) for run_id in run_ids]


def _link(
    label: str,
    path: str,
    help: str | None,
    icon: str | None,
    width: Literal["stretch", "content"] = "content",
) -> None:
    # Relative to the page, which has one part: so it also works behind a proxy that puts a path before it.
    st.link_button(label, path.removeprefix("/"), help=help, icon=icon, width=width)
