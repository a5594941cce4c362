"""The destinations of the server's alerts: a panel of the System page, and a line elsewhere if one fails."""

import streamlit as st

from dashboard import state
from dashboard.components import heading, plain
from dashboard.data.alert_deliveries import alert_deliveries
from harness import words
from harness.alerts import DeliveryStatus

_TICK_S = 5.0
_HELP = (
    "The destinations that this dashboard was started with (--on-alert, --alert-webhook). An alert that is "
    "not delivered is not sent again; the events of its run have the cause."
)


def failing_line() -> None:
    """Draw a line while an alert does not reach a destination; nothing for a server without any."""
    if alert_deliveries().read() is not None:
        st.fragment(_line, run_every=_TICK_S)()


def deliveries_panel() -> None:
    """Draw a panel with every destination; nothing for a server without any."""
    if alert_deliveries().read() is not None:
        st.fragment(_panel, run_every=_TICK_S)()


def _line() -> None:
    report = alert_deliveries().read()
    if report is None or not report.is_failing:
        return
    names = [one.destination for one in report.deliveries if one.failure is not None]
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="alerts_fail"):
        st.badge(
            plain(_summary(names)),
            icon=":material/notifications_off:",
            color="red",
        )
        st.page_link(state.page("system"), label="Reasons and remedies", icon=":material/arrow_forward:")


def _summary(failing: list[str]) -> str:
    match failing:
        case []:
            return "Alerts have a problem"
        case [name]:
            return f"Alerts to {name} fail"
        case _:
            return f"Alerts to {len(failing)} destinations fail"


def _panel() -> None:
    report = alert_deliveries().read()
    if report is None:
        return
    with st.container(border=True, key="alert_deliveries", gap="xsmall"):
        heading("Alerts", help=_HELP)
        if report.problem is not None:
            st.error(plain(report.problem), icon=":material/error:")
        for delivery in report.deliveries:
            _destination(delivery)


def _destination(delivery: DeliveryStatus) -> None:
    failure = delivery.failure
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if failure is not None:
            st.badge("fails", icon=":material/error:", color="red", width=110)
        elif delivery.delivered:
            st.badge("delivers", icon=":material/check_circle:", color="green", width=110)
        else:
            st.badge("unused", icon=":material/do_not_disturb_on:", color="gray", width=110)
        with st.container(width=190):
            st.text(delivery.destination)
        with st.container(width="stretch", gap=None):
            st.text(_sentence(delivery))
            if failure is not None:
                st.caption(plain(failure.remedy))


def _sentence(delivery: DeliveryStatus) -> str:
    parts = []
    if delivery.failure is not None:
        since, newest = map(words.moment, (delivery.failure.since_unix_ns, delivery.failure.newest_unix_ns))
        times = f"Failed at {newest}" if since == newest else f"Failing since {since}, last at {newest}"
        parts.append(f"{times}: {delivery.failure.reason}.")
    if delivery.delivered:
        last = words.moment(delivery.delivered_unix_ns)
        parts.append(f"{words.plural(delivery.delivered, 'alert')} delivered, the last at {last}.")
    if delivery.lost:
        parts.append(f"{words.plural(delivery.lost, 'alert')} not delivered.")
    if delivery.waiting:
        parts.append(f"{words.plural(delivery.waiting, 'alert')} waiting.")
    return " ".join(parts) or "No alert so far."
