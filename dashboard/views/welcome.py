"""The Live page while there is no run: start one, or load the simulated runs."""

import streamlit as st

from dashboard import state
from dashboard.components import heading, plain
from dashboard.data.runs import home, load_demo, read_only
from dashboard.views.script import own_command
from harness.errors import StepscopeError


def welcome() -> None:
    """Offer to start a first run or to load the simulated ones."""
    with st.container(horizontal_alignment="center", key="welcome"):
        st.space("large")
        heading("No run yet")
        if read_only() is not None:
            st.text("Runs appear here once they start. This dashboard is read-only and cannot start one.")
            return
        st.text("Start a training run and follow every step, or explore simulated runs first.")
        with st.container(horizontal=True, horizontal_alignment="center"):
            if st.button("Start a run", type="primary", icon=":material/play_arrow:", key="welcome_start"):
                st.switch_page(state.page("new"))
            if st.button("Load the simulated runs", icon=":material/science:", key="load_demo"):
                _load()
        st.space("small")
        with st.container(width=560):
            own_command()
        st.caption(f"Runs are stored in {plain(str(home().path))}", width="content")


def _load() -> None:
    try:
        with st.spinner("Writing the simulated runs…"):
            load_demo()
    except StepscopeError as error:
        state.set_problem(str(error))
    st.rerun()
