"""The tables of a profile: its operators and kernels, or its changes since another, with a search."""

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from dashboard import state
from dashboard.charts import profile_lines
from dashboard.charts.profile_lines import OpLine, WorkChangeLine, Works
from dashboard.components import (
    PERCENT_FORMAT,
    NumberColumn,
    decimal_column,
    figure_column,
    percent_column,
    size_column,
    table,
)
from dashboard.data.profiles import Profile
from harness import words
from harness.analysis.profiles import by_module, compare

_ROW_PX, _HEAD_PX, _MOST_PX = 35, 38, 420


def work_table(run: str, profile: Profile) -> None:
    """Draw the operators or kernels of one profile."""
    available = profile_lines.works(profile.operators)
    if not available:
        st.caption("n/a: nothing was recorded.")
        return
    with _bar():
        search, listed = _search(available)
        lines = profile_lines.lines(profile.row, profile.operators, listed)
        rows = profile_lines.matching(lines, search)
        _count(len(rows), len(lines), listed)
    key = f"profile_table_{run}_{profile.row.profile_id}_{listed.value}"
    _table(rows, key, _COLUMNS, "Operators or kernels with their time per step.")


def change_table(run: str, before: Profile, after: Profile) -> None:
    """Draw the operators, kernels or modules of two profiles with the difference per step."""
    available = profile_lines.works([*before.operators, *after.operators])
    if before.modules and after.modules:
        available.append(Works.MODULES)
    if not available:
        st.caption("n/a: nothing was recorded.")
        return
    with _bar():
        search, listed = _search(available)
        lines = _changes(before, after, listed)
        rows = profile_lines.matching(lines, search)
        _count(len(rows), len(lines), listed)
    ids = f"{before.row.profile_id}_{after.row.profile_id}"
    names = (f"#{before.row.profile_id}", f"#{after.row.profile_id}")
    columns = {**_CHANGES, "before_ms": _own(f"{names[0]}, ms"), "after_ms": _own(f"{names[1]}, ms")}
    spoken = "Time per step in two profiles, the largest difference first."
    _table(rows, f"profile_changes_{run}_{ids}_{listed.value}", columns, spoken)


def _changes(before: Profile, after: Profile, listed: Works) -> list[WorkChangeLine]:
    sides = [
        by_module(one.modules, one.row)
        if listed is Works.MODULES
        else profile_lines.parts(one.row, one.operators, listed)
        for one in (before, after)
    ]
    return profile_lines.change_lines(compare(sides[0], sides[1], (before.row, after.row)))


def _bar() -> Any:
    return st.container(horizontal=True, vertical_alignment="center", gap="small", key="profile_search_bar")


def _search(available: Sequence[Works]) -> tuple[str, Works]:
    """Draw the search field and the choice of a list; return both values."""
    search = st.text_input(
        "Search",
        key=state.Key.PROFILE_SEARCH,
        placeholder="Search by name or kind of work",
        icon=":material/search:",
        label_visibility="collapsed",
        width=320,
    )
    if len(available) == 1:
        return search, available[0]
    if state.widget_value(state.Key.PROFILE_WORKS) not in available:
        state.set_value_of_drawn(state.Key.PROFILE_WORKS, available[0].value)
    listed = st.segmented_control(
        "List",
        [one.value for one in available],
        default=available[0].value,
        required=True,
        key=state.Key.PROFILE_WORKS,
        label_visibility="collapsed",
    )
    return search, Works(listed or available[0])


def _count(rows: int, lines: int, listed: Works) -> None:
    text = words.plural(lines, listed.value.removesuffix("s"))
    st.caption(text if rows == lines else f"{words.count(rows)} of {text}", width="content")


def _table(
    rows: Sequence[OpLine] | Sequence[WorkChangeLine],
    key: str,
    columns: Mapping[str, Any],
    alt: str,
) -> None:
    if not rows:
        return
    table(
        rows,
        columns=columns,
        key=key,
        height=min(_MOST_PX, _HEAD_PX + _ROW_PX * len(rows)),
        alt=f"{alt} Click a heading to sort.",
    )


def _time(label: str, help_text: str) -> NumberColumn:
    return decimal_column(label, 3, f"{help_text} Milliseconds per step.")


def _own(label: str) -> NumberColumn:
    return _time(label, "Self time, without the operators it called.")


_NAMES = {
    "name": st.column_config.TextColumn("Name", width=280),
    "kind": st.column_config.TextColumn("Kind of work", help="Classified by its name."),
}
_COLUMNS = {
    **_NAMES,
    "share_pct": st.column_config.ProgressColumn(
        "Share of list",
        format=PERCENT_FORMAT,
        min_value=0.0,
        max_value=100.0,
        help="Self time as a share of the self time of all rows in this list. The sentence above has shares "
        "of the whole step, idle time included.",
    ),
    "self_device_ms": _time("Self device, ms", "On the device, in the kernels it launched itself."),
    "total_device_ms": _time("Total device, ms", "On the device, with the operators it called."),
    "self_cpu_ms": _time("Self CPU, ms", "On the CPU, without the operators it called."),
    "total_cpu_ms": _time("Total CPU, ms", "On the CPU, with the operators it called."),
    "calls": figure_column("Calls per step"),
    "memory_bytes": size_column("Memory", "Allocated minus freed by it, per step."),
}
_CHANGES = {
    **_NAMES,
    "difference_ms": decimal_column("Difference, ms", 3, "Difference in time per step.", sign="+"),
    "change_pct": percent_column("Change", "Relative to the earlier profile.", sign="+"),
}
