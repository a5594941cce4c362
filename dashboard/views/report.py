"""The button that downloads the report of a run or a comparison."""

from collections.abc import Sequence
from functools import partial

import streamlit as st

from dashboard.data import runs as run_data
from dashboard.report.build import downloaded
from harness.store.folder import RunFolder


def report_button(folders: Sequence[RunFolder]) -> None:
    """Draw the button. The report is written when it is clicked."""
    what = "this run" if len(folders) == 1 else "this comparison"
    st.download_button(
        "Report",
        data=partial(downloaded, run_data.supervisor(), folders),
        file_name=f"stepscope-{'-'.join(folder.run_id for folder in folders[:2])}.html",
        mime="text/html",
        key="download_report",
        icon=":material/description:",
        # A run of the page would replace the id of the file that the browser asks for at that moment.
        on_click="ignore",
        help=f"Charts, memory, verdicts, operators and settings of {what}: one HTML file that opens offline.",
    )
