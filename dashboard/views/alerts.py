"""Memory alerts of a run, in one line above the figures."""

from collections.abc import Sequence

import streamlit as st

from dashboard import state
from dashboard.components import plain
from harness.analysis.memory.alerts import Alert, Urgency

_BADGES = {
    Urgency.BAD: ("red", ":material/error:"),
    Urgency.WARNING: ("orange", ":material/warning:"),
}


def alert_line(alerts: Sequence[Alert], run: str) -> None:
    """Draw a badge for each alert and a link to the Memory page; an empty container without alerts."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="alerts"):
        if not alerts:
            return
        for alert in alerts:
            color, icon = _BADGES[alert.urgency]
            st.badge(plain(alert.label), icon=icon, color=color, help=plain(alert.sentence))  # type: ignore[arg-type]  # a Literal
        st.page_link(
            state.page("memory"),
            label="Causes and remedies",
            icon=":material/arrow_forward:",
            query_params=state.run_query(run),
        )
