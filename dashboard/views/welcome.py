"""What the Live page shows while there is no run: what to do, in two buttons."""

import streamlit as st

from dashboard import state
from dashboard.components import plain
from dashboard.data.runs import home, load_demo, read_only
from harness.errors import StepscopeError


def welcome() -> None:
    """Invite to a first run, or to the simulated ones."""
    with st.container(horizontal_alignment="center", key="welcome"):
        st.space("large")
        st.markdown("## No run yet", width="content")
        if read_only() is not None:
            st.text("Runs appear here as they are started. This dashboard is read-only: it starts none.")
            return
        st.text("Start a training run and watch every step, or look at simulated runs first.")
        with st.container(horizontal=True, horizontal_alignment="center"):
            if st.button("Start a run", type="primary", icon=":material/play_arrow:", key="welcome_start"):
                st.switch_page(state.page("new"))
            if st.button("Load the simulated runs", icon=":material/science:", key="load_demo"):
                _load()
        st.caption(f"Runs are kept in {plain(str(home().path))}", width="content")


def _load() -> None:
    try:
        with st.spinner("Writing the simulated runs…"):
            load_demo()
    except StepscopeError as error:
        state.say_problem(str(error))
    st.rerun()
