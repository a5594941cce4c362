"""The Memory page: where a run's memory is, whether it leaks, and why it ran out."""

import streamlit as st

from dashboard import state
from dashboard.components import plain, show_problem
from dashboard.data import runs as run_data
from dashboard.views import header
from dashboard.views.welcome import welcome
from harness.errors import StepscopeError


def page() -> None:
    """Draw the page."""
    show_problem()
    try:
        folder = header.chosen()
    except StepscopeError as error:
        st.error(plain(str(error)), icon=":material/search_off:")
        st.page_link(state.page("runs"), label="See all runs", icon=":material/list:")
        return
    if folder is None:
        welcome()
        return
    seen = run_data.look(folder)
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="memory_header"):
        header.run_picker(seen)
        header.run_badges(seen)
