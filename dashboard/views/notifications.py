"""Notifications of alerts by the browser: a bell in the header of every page."""

import streamlit as st

from dashboard import canvas, state
from dashboard.data.alert_feed import alert_feed

_TICK_S = 5.0


def notifications() -> None:
    """Draw the bell. Only while it is on, the browser asks for alerts, of all runs."""
    is_on = state.are_notifications_on()
    with st.container(key="notifications"):
        st.fragment(_tick, run_every=_TICK_S if is_on else None)(is_on)


def _tick(was_on: bool) -> None:
    if state.are_notifications_on() != was_on:
        st.rerun()
    canvas.bell(alert_feed().alerts() if was_on else (), was_on, key=state.Key.BELL)
