"""What one profile says, or two beside each other: the verdict, kinds of work, tables, icicles, the trace."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st

from dashboard import state
from dashboard.charts import profile_lines, profile_tree
from dashboard.charts.profile_lines import OpLine, Works
from dashboard.components import plain
from dashboard.data import profiles as profile_data
from dashboard.data.profiles import Profile
from dashboard.data.runs import Look
from harness import words
from harness.profile_records import ProfileReason, ProfileRow

_CHART: Mapping[str, Any] = {"displayModeBar": False, "displaylogo": False, "plotlyServerURL": ""}


def show(seen: Look, profile: Profile) -> None:
    """Everything about a profile."""
    row = profile.row
    st.markdown(f"**{plain(row.message)}**")
    st.caption(plain(_facts(seen, row)))
    st.fragment(_details)(seen.folder.run_id, profile)
    _trace(seen, row)


def _facts(seen: Look, row: ProfileRow) -> str:
    """Which steps, under which settings, on which clock, and what they cost."""
    last = row.first_step + row.steps - 1
    steps = f"Steps {words.count(row.first_step)} to {words.count(last)}"
    parts = [
        steps if last > row.first_step else f"Step {words.count(last)}",
        f"settings {row.settings_version}: {profile_data.settings_words(seen, row)}",
        "on the device's clock" if row.on_device else "on the CPU's clock",
    ]
    if row.reason == ProfileReason.SCHEDULE:
        parts.append("taken by the schedule")
    if row.slowdown is not None:
        parts.append(f"the recorded steps took {words.figure(row.slowdown, 3)} times as long as usual")
    if row.took_ns is not None:
        parts.append(f"training waited {words.duration(row.took_ns)} after them")
    return " · ".join(parts)


def _details(run: str, profile: Profile) -> None:
    """Tables and charts; a fragment, so that a search draws nothing else anew."""
    names = ["Operators and kernels", "By module"]
    if profile.row.with_stacks:
        names.append("By stack")
    tabs = st.tabs(names)
    with tabs[0]:
        _works(run, profile)
    with tabs[1]:
        _icicle(
            profile_tree.by_module(profile.row, profile.modules),
            f"profile_modules_{run}_{profile.row.profile_id}",
            "The phases of a step, the modules in them, each as wide as the time it takes.",
        )
    if profile.row.with_stacks:
        with tabs[2]:
            _icicle(
                profile_tree.by_stack(profile.row, profile.stacks),
                f"profile_stacks_{run}_{profile.row.profile_id}",
                "The lines of Python that called, each as wide as the time below it.",
            )


def _icicle(figure: dict[str, Any] | None, key: str, alt: str) -> None:
    if figure is None:
        st.caption("n/a: the profile does not tell.")
        return
    st.plotly_chart(figure, theme=None, key=key, config=dict(_CHART), alt=alt)
    st.caption("Click a part to look inside; click the bar on top to go back.")


def _works(run: str, profile: Profile) -> None:
    """The table with its search."""
    there = profile_lines.works(profile.operators)
    if not there:
        st.caption("n/a: nothing was recorded.")
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="profile_search_bar"):
        search = st.text_input(
            "Search",
            key=state.Key.PROFILE_SEARCH,
            placeholder="Search by name or kind of work",
            icon=":material/search:",
            label_visibility="collapsed",
            width=320,
        )
        listed = there[0]
        if len(there) > 1:
            listed = Works(
                st.segmented_control(
                    "List",
                    [one.value for one in there],
                    default=there[0].value,
                    required=True,
                    key=state.Key.PROFILE_WORKS,
                    label_visibility="collapsed",
                )
                or there[0]
            )
        found = profile_lines.lines(profile.row, profile.operators, listed)
        shown = profile_lines.matching(found, search)
        st.caption(_counted(len(shown), len(found), listed), width="content")
    if not shown:
        return
    frame = pd.DataFrame(shown, columns=list(OpLine._fields))
    known = [name for name in frame.columns if frame[name].notna().any()]
    st.dataframe(
        frame[known],
        hide_index=True,
        placeholder=words.NOT_AVAILABLE,
        key=f"profile_table_{run}_{profile.row.profile_id}_{listed.value}",
        height=min(420, 38 + 35 * len(frame)),
        column_config={name: _COLUMNS[name] for name in known},
        alt="Operators or kernels with their time a step. Click a heading to sort.",
    )


def _counted(shown: int, found: int, listed: Works) -> str:
    noun = listed.value.removesuffix("s")
    if shown == found:
        return words.plural(found, noun)
    return f"{words.count(shown)} of {words.plural(found, noun)}"


def _time(label: str, help_text: str) -> Any:
    return st.column_config.NumberColumn(label, format="%.3f", help=f"{help_text} Milliseconds a step.")


_COLUMNS = {
    "name": st.column_config.TextColumn("Name", width="large"),
    "kind": st.column_config.TextColumn("Kind of work", help="Told by its name."),
    "share": st.column_config.ProgressColumn(
        "Share",
        format="percent",
        min_value=0.0,
        max_value=1.0,
        help="Its own time as a share of the time of all that is listed here.",
    ),
    "self_device": _time("Self device, ms", "On the device, in the kernels it launched itself."),
    "total_device": _time("Total device, ms", "On the device, with what it called."),
    "self_cpu": _time("Self CPU, ms", "On the CPU, without what it called."),
    "total_cpu": _time("Total CPU, ms", "On the CPU, with what it called."),
    "calls": st.column_config.NumberColumn("Calls a step", format="%.4g"),
    "memory": st.column_config.NumberColumn(
        "Memory, MiB", format="%.2f", help="Allocated less freed by it, a step."
    ),
}


def _trace(seen: Look, row: ProfileRow) -> None:
    """The trace to download, read when it is asked for."""
    trace = profile_data.trace(seen.folder, row)
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="profile_trace"):
        if trace.path is not None:
            st.download_button(
                f"Trace ({words.size(trace.size_bytes)})",
                data=trace.path.read_bytes,
                file_name=f"{seen.folder.run_id}-{trace.path.name}",
                mime="application/gzip",
                key=f"download_trace_{row.profile_id}",
                icon=":material/download:",
                on_click="ignore",
                help="Every operator and kernel on a time line, in Chrome's trace format, compressed.",
            )
            st.caption(_PERFETTO, width="content")
        missing = [row.left_out, "" if row.file is None and row.left_out else trace.why_not]
        told = " ".join(sentence for sentence in missing if sentence)
        if told:
            st.caption(f":material/info: {plain(told)}", width="content")
    if row.on_device:
        st.caption(plain(_NSIGHT))


_PERFETTO = "Open it at ui.perfetto.dev: drop the file there, it is read in the browser and goes nowhere."
_NSIGHT = "For Nsight Systems switch on the setting nvtx: the phases of a step are then named ranges there."
