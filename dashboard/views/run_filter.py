"""Search, filters and order of the Runs page."""

from collections.abc import Callable, Sequence

import streamlit as st

from dashboard import state
from harness.analysis.run_list import RunFilter, SortKey, model_of, sort_entries, state_of
from harness.records.entry import RunEntry

_DOWN, _UP = "↓", "↑"
_ORDERS = [f"{key.value} {arrow}" for key in SortKey for arrow in (_DOWN, _UP)]


def select_runs(entries: Sequence[RunEntry]) -> list[RunEntry]:
    """Draw search, filters and order, and return the runs that meet the criteria, in that order."""
    with st.container(horizontal=True, vertical_alignment="bottom", key="runs_filter"):
        search = st.text_input(
            "Search",
            key=state.Key.RUNS_SEARCH,
            placeholder="Search name, model, script, tags, notes",
            label_visibility="collapsed",
            icon=":material/search:",
        )
        with st.popover("Filter", icon=":material/filter_list:"):
            criteria = RunFilter(
                _choice("State", entries, state_of),
                _choice("Model", entries, model_of),
                _choice("Device", entries, lambda run: run.device_name),
                _tags(entries),
                search or "",
            )
        order = st.selectbox(
            "Order",
            _ORDERS,
            key=state.Key.RUNS_ORDER,
            label_visibility="collapsed",
            width=170,
        )
    name, _, arrow = order.rpartition(" ")
    return sort_entries(criteria.select(entries), SortKey(name), is_descending=arrow == _DOWN)


def _choice(label: str, entries: Sequence[RunEntry], value_of: Callable[[RunEntry], str | None]) -> list[str]:
    """Draw a choice among the values that the runs have."""
    values = {value for run in entries if (value := value_of(run)) is not None}
    return _multiselect(label, values)


def _tags(entries: Sequence[RunEntry]) -> list[str]:
    return _multiselect("Tags", {tag for run in entries for tag in run.tags})


def _multiselect(label: str, values: set[str]) -> list[str]:
    """Draw a choice of several values; a selected one stays an option after its last run has gone."""
    key = f"runs_{label.lower()}"
    options = sorted(values | set(state.widget_value(key) or ()))
    return st.multiselect(
        label, options, key=key, format_func=lambda value: value.replace("_", " "), width=320
    )
