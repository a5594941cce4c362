"""The script of every page, run by `dashboard/app.py`: page configuration and navigation."""

from pathlib import Path

import streamlit as st

from dashboard import canvas, state
from dashboard.components import page_title
from dashboard.views import compare, live, memory, new, profiler, runs, system, tune
from dashboard.views.alert_deliveries import failing_line
from dashboard.views.notifications import notifications

_STATIC = Path(__file__).with_name("static")

st.set_page_config(
    page_title="Stepscope",
    page_icon=str(_STATIC / "icon.svg"),
    layout="wide",
    menu_items={"About": "**Stepscope**: an oscilloscope for PyTorch training, on your own machine."},
)
st.html(_STATIC / "stepscope.css")
canvas.preload()
st.logo(str(_STATIC / "logo.svg"))
_PAGES = {
    "live": st.Page(live.page, title="Live", icon=":material/monitoring:", default=True),
    "memory": st.Page(memory.page, title="Memory", icon=":material/memory:", url_path="memory"),
    "profiler": st.Page(profiler.page, title="Profiler", icon=":material/speed:", url_path="profiler"),
    "runs": st.Page(runs.page, title="Runs", icon=":material/list:", url_path="runs"),
    "compare": st.Page(
        compare.page, title="Compare", icon=":material/stacked_line_chart:", url_path="compare"
    ),
    "tune": st.Page(tune.page, title="Tune", icon=":material/tune:", url_path="tune"),
    "new": st.Page(new.page, title="New run", icon=":material/add:", url_path="new"),
    "system": st.Page(system.page, title="System", icon=":material/computer:", url_path="system"),
}
_PAGES_OF_A_RUN = {_PAGES[name].title for name in ("live", "memory", "profiler")}
state.store_pages(_PAGES)
# The default page has the address "/" only.
_ADDRESSES = [st.Page(live.redirect, title="Live", url_path="live", visibility="hidden")]
_PAGE = st.navigation([*_PAGES.values(), *_ADDRESSES], position="top")
st.set_page_config(page_title=f"{_PAGE.title} · Stepscope")
notifications()
if _PAGE.title in _PAGES_OF_A_RUN:
    with st.container(key="page_title"):  # For screen readers: others see the name of the run at that place.
        page_title(_PAGE.title)
if _PAGE is not _PAGES["system"]:
    failing_line()
_PAGE.run()
