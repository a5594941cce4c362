"""The head of the pages about one run: its name, its state, and a picker for other runs."""

from collections.abc import Sequence

import streamlit as st

from dashboard import state
from dashboard.callbacks import to_the_end
from dashboard.components import plain, state_pill
from dashboard.data import runs as run_data
from dashboard.data.runs import RunView
from dashboard.views.welcome import welcome
from harness.analysis.run_list import UNREADABLE
from harness.errors import StepscopeError, UnknownRunError
from harness.records.run import EventRow
from harness.store.folder import RunFolder

# The page of a run that has ended has no other tick, and must notice too.
_PRESENCE_S = 5.0


def run_or_welcome() -> RunFolder | None:
    """Return the run in the address, else the last one shown, else the newest. None when there is no run to
    show; the reason or the welcome panel is then drawn."""
    try:
        folder = _chosen()
    except StepscopeError as error:
        st.error(plain(str(error)), icon=":material/search_off:")
        st.page_link(state.page("runs"), label="See all runs", icon=":material/list:")
        return None
    if folder is None:
        welcome()
        return None
    st.fragment(_watch_presence, run_every=_PRESENCE_S)(folder)
    return folder


def _watch_presence(folder: RunFolder) -> None:
    """Rerun the page, which reports it, once the run was deleted in another tab or from a shell."""
    if not run_data.home().has(folder):
        st.rerun()


def _chosen() -> RunFolder | None:
    """Raises UnknownRunError, HomeError."""
    named = state.run_id()
    folder = _named(named) if named is not None else _last_viewed() or run_data.newest()
    if folder is not None:
        state.show_run(folder.run_id)
    return folder


def _named(run: str) -> RunFolder:
    """Return the run in the address. Raises UnknownRunError, with its own message if this tab has shown the
    run before."""
    try:
        return run_data.find(run)
    except UnknownRunError:
        if run != state.last_run():
            raise
        raise UnknownRunError(
            f"The run {run} was deleted while this page showed it; its log is gone."
        ) from None


def _last_viewed() -> RunFolder | None:
    last = state.last_run()
    try:
        return None if last is None else run_data.find(last)
    except StepscopeError:
        return None


def run_picker(view: RunView) -> None:
    """Draw the select box of all runs."""
    names = {folder.run_id: folder.request().name for folder in run_data.home().runs()}
    names[view.folder.run_id] = view.name
    state.set_value_of_drawn(state.Key.RUN, view.folder.run_id)
    st.selectbox(
        "Run",
        list(names),
        list(names).index(view.folder.run_id),
        key=state.Key.RUN,
        format_func=lambda run: names.get(run, run),
        label_visibility="collapsed",
        on_change=_pick,
        width=270,
    )


def run_badges(view: RunView, injected: Sequence[EventRow] = ()) -> None:
    """Draw the run's state, and badges for a simulated run and for a fault injected by its settings or by
    the events `injected`."""
    if view.problem is not None and view.status.state.is_over:  # The list of runs says the same.
        st.badge(UNREADABLE, icon=":material/database_off:", color="red", help=plain(view.problem))
    else:
        state_pill(view.status)
    if view.run is not None and view.run.simulated:
        st.badge("simulated", icon=":material/science:", color="violet")
    if view.imported is not None:
        source = plain(f"{view.imported.source}: {view.imported.path}")
        st.badge("imported", icon=":material/download:", color="gray", help=source)
    fault = None if view.initial_settings is None else view.initial_settings.get("inject")
    if fault or injected:
        text = f"injected: {fault}" if fault else injected[-1].label
        st.badge(plain(text), icon=":material/bug_report:", color="violet")


@to_the_end
def _pick() -> None:
    state.show_run(state.widget_value(state.Key.RUN))
