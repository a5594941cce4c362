"""What one profile says, or two beside each other: the verdict, kinds of work, tables, icicles, the trace."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import streamlit as st

from dashboard.charts import profile_kinds, profile_tree
from dashboard.components import plain
from dashboard.data import profiles as profile_data
from dashboard.data.profiles import Profile
from dashboard.data.runs import Look
from dashboard.views.profile_tables import change_table, work_table
from harness import words
from harness.analysis.profiles import by_kind, compare
from harness.profile_records import ProfileReason, ProfileRow
from harness.records import DeviceKind

_CHART: Mapping[str, Any] = {"displayModeBar": False, "displaylogo": False, "plotlyServerURL": ""}
_KINDS_HELP = (
    "What a step's time went into, told by the names of operators and kernels. The bars sum to it; idle "
    "is the time in which nothing ran."
)


def show(seen: Look, profile: Profile, beside: Profile | None) -> None:
    """Everything about `profile`; compared with `beside` where there is one."""
    pair = None if beside is None else _in_order(seen, profile, beside)
    if pair is None:
        st.markdown(f"**{plain(profile.row.message)}**")
        st.caption(plain(_facts(seen, profile.row)))
        _kinds(profile_kinds.of_one(profile.row, profile.operators))
    st.fragment(_details)(seen.folder.run_id, profile, pair)
    _trace(seen, profile.row)


def _in_order(seen: Look, profile: Profile, beside: Profile) -> tuple[Profile, Profile] | None:
    """Draws the comparison of two profiles, the earlier of them first; None where there can be none."""
    before, after = sorted((profile, beside), key=lambda one: one.row.profile_id)
    rows = (before.row, after.row)
    sides = [by_kind(one.operators, one.row) for one in (before, after)]
    try:
        compared = compare(sides[0], sides[1], rows, profile_data.changed_words(seen, *rows))
    except ValueError as error:
        st.warning(plain(str(error)), icon=":material/compare_arrows:")
        return None
    st.markdown(f"**{plain(compared.verdict)}**")
    for row in rows:
        st.caption(plain(f"#{row.profile_id}: {_facts(seen, row)}"))
    if samples := profile_data.samples_words(seen.folder, *rows):
        st.caption(plain(samples))
    if _extra(before.row) != _extra(after.row):
        st.caption("Recording memory or stacks takes time itself, and it was not the same in both.")
    names = (f"#{before.row.profile_id}", f"#{after.row.profile_id}")
    _kinds(profile_kinds.of_two(compared, names))
    return before, after


def _kinds(bars: profile_kinds.KindBars) -> None:
    st.markdown("**Time by kind of work**", help=_KINDS_HELP)
    st.html(profile_kinds.html(bars))


def _facts(seen: Look, row: ProfileRow) -> str:
    """Which steps, under which settings, on which clock, and what they cost."""
    last = row.first_step + row.steps - 1
    steps = f"Steps {words.count(row.first_step)} to {words.count(last)}"
    parts = [
        steps if last > row.first_step else f"Step {words.count(last)}",
        f"settings {row.settings_version}: {profile_data.settings_words(seen, row)}",
        "on the device's clock" if row.on_device else "on the CPU's clock",
    ]
    if extra := _extra(row):
        parts.append(f"with {extra}")
    if row.reason == ProfileReason.SCHEDULE:
        parts.append("taken by the schedule")
    if row.slowdown is not None:
        parts.append(f"the recorded steps took {words.figure(row.slowdown, 3)} times as long as usual")
    if row.took_ns is not None:
        parts.append(f"training waited {words.duration(row.took_ns)} after them")
    return " · ".join(parts)


def _extra(row: ProfileRow) -> str:
    """What was recorded beside times: "memory and stacks"."""
    names = [name for name, on in (("memory", row.with_memory), ("stacks", row.with_stacks)) if on]
    return " and ".join(names)


def _details(run: str, profile: Profile, pair: tuple[Profile, Profile] | None) -> None:
    """Tables and charts; a fragment, so that a search draws nothing else anew."""
    row = profile.row
    which = "" if pair is None else f" of #{row.profile_id}"
    names = ["Operators and kernels" if pair is None else "Differences", f"By module{which}"]
    if row.with_stacks:
        names.append(f"By stack{which}")
    tabs = st.tabs(names)
    with tabs[0]:
        if pair is None:
            work_table(run, profile)
        else:
            change_table(run, *pair)
    with tabs[1]:
        _icicle(
            profile_tree.by_module(row, profile.modules),
            f"profile_modules_{run}_{row.profile_id}",
            "The phases of a step, the modules in them, each as wide as the time it takes.",
        )
    for tab in tabs[2:]:
        with tab:
            _icicle(
                profile_tree.by_stack(row, profile.stacks),
                f"profile_stacks_{run}_{row.profile_id}",
                "The lines of Python that called, each as wide as the time below it.",
            )


def _icicle(figure: dict[str, Any] | None, key: str, alt: str) -> None:
    if figure is None:
        st.caption("n/a: the profile does not tell.")
        return
    st.plotly_chart(figure, theme=None, key=key, config=dict(_CHART), alt=alt)
    st.caption("Click a part to look inside; click the bar on top to go back.")


def _trace(seen: Look, row: ProfileRow) -> None:
    """The trace to download, read when it is asked for; what is missing, and why."""
    trace = profile_data.trace(seen.folder, row)
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="profile_trace"):
        if trace.path is not None:
            st.download_button(
                f"Trace ({words.size(trace.size_bytes)})",
                data=partial(profile_data.read_trace, trace.path),
                file_name=f"{seen.folder.run_id}-{trace.path.name}",
                mime="application/gzip",
                key=f"download_trace_{row.profile_id}",
                icon=":material/download:",
                # A run of the page would replace the id of the file that the browser asks for at that moment.
                on_click="ignore",
                help="Every operator and kernel on a time line, in Chrome's trace format, compressed.",
            )
            st.caption(_PERFETTO, width="content")
        if trace.why_not and not (row.file is None and row.left_out):
            st.caption(f":material/info: {plain(trace.why_not)}", width="content")
    if row.left_out:
        st.caption(plain(f"Left out: {row.left_out}"))
    if row.on_device and seen.device is not None and seen.device.kind is DeviceKind.CUDA:
        st.caption(plain(_NSIGHT))


_PERFETTO = "Open it at ui.perfetto.dev: drop the file there, it is read in the browser and goes nowhere."
_NSIGHT = "For Nsight Systems switch on the setting nvtx: the phases of a step are then named ranges there."
