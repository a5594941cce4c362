"""One profile, or two compared: verdict, kinds of work, tables, icicle charts, and the trace."""

from collections.abc import Mapping
from typing import Any

import streamlit as st

from dashboard.charts import profile_kinds, profile_tree
from dashboard.components import heading, plain
from dashboard.data import profiles as profile_data
from dashboard.data.profiles import Profile
from dashboard.data.runs import RunView
from dashboard.download_links import capture_link
from dashboard.views.profile_tables import change_table, work_table
from harness import words
from harness.analysis.profiles import by_kind, compare
from harness.analysis.slowdown import UNKNOWN, slowdown_of
from harness.records.profile import ProfileReason, ProfileRow
from harness.records.run import DeviceKind

_CHART: Mapping[str, Any] = {"displayModeBar": False, "displaylogo": False, "plotlyServerURL": ""}
_KINDS_HELP = (
    "Time of a step by kind of work, classified by the names of operators and kernels. The bars add up to "
    "the step; idle is time in which nothing ran."
)


def show(view: RunView, profile: Profile, baseline: Profile | None) -> None:
    """Draw `profile`, compared with `beside` if there is one."""
    pair = None if baseline is None else _in_order(view, profile, baseline)
    if pair is None:
        st.markdown(f"**{plain(profile.row.message)}**")
        st.caption(plain(_facts(view, profile.row)))
        _kinds(profile_kinds.of_one(profile.row, profile.operators))
    st.fragment(_details)(view.folder.run_id, profile, pair)
    _trace(view, profile.row)


def _in_order(view: RunView, profile: Profile, baseline: Profile) -> tuple[Profile, Profile] | None:
    """Draw the comparison of two profiles, the earlier one first; None if they cannot be compared."""
    before, after = sorted((profile, baseline), key=lambda one: one.row.profile_id)
    rows = (before.row, after.row)
    sides = [by_kind(one.operators, one.row) for one in (before, after)]
    try:
        compared = compare(sides[0], sides[1], rows, profile_data.changed_words(view, *rows))
    except ValueError as error:
        st.warning(plain(str(error)), icon=":material/compare_arrows:")
        return None
    st.markdown(f"**{plain(compared.verdict)}**")
    for row in rows:
        st.caption(plain(f"#{row.profile_id}: {_facts(view, row)}"))
    if samples := profile_data.samples_words(view.folder, *rows):
        st.caption(plain(samples))
    if _extra(before.row) != _extra(after.row):
        st.caption("The two differ in what they record (memory, stacks), which itself takes time.")
    names = (f"#{before.row.profile_id}", f"#{after.row.profile_id}")
    _kinds(profile_kinds.of_two(compared, names))
    return before, after


def _kinds(bars: profile_kinds.KindBars) -> None:
    heading("Time by kind of work", help=_KINDS_HELP, level=3)
    st.html(profile_kinds.html(bars))


def _facts(view: RunView, row: ProfileRow) -> str:
    """Return the steps of a profile, its settings, its clock and its overhead."""
    parts = [
        words.step_range(row.first_step, row.first_step + row.steps - 1).capitalize(),
        f"settings {row.settings_version}: {profile_data.settings_words(view, row)}",
        "on the device's clock" if row.on_device else "on the CPU's clock",
    ]
    if extra := _extra(row):
        parts.append(f"with {extra}")
    if row.reason == ProfileReason.SCHEDULE:
        parts.append("scheduled")
    if (slowdown := slowdown_of(row.slowdown)) is not None:
        parts.append(f"a recorded step took {words.figure(slowdown, 3)} times as long as one before")
    elif row.slowdown is not None:
        parts.append(f"recorded steps are {UNKNOWN}")
    if row.took_ns is not None:
        parts.append(f"training waited {words.duration(row.took_ns)} after them")
    return " · ".join(parts)


def _extra(row: ProfileRow) -> str:
    """Return the data recorded in addition to times: "memory and stacks"."""
    names = [name for name, on in (("memory", row.with_memory), ("stacks", row.with_stacks)) if on]
    return " and ".join(names)


def _details(run: str, profile: Profile, pair: tuple[Profile, Profile] | None) -> None:
    """Draw tables and charts. Runs in a fragment, so that a search redraws nothing else."""
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
            "The phases of a step and the modules in them, each as wide as its time.",
        )
    for tab in tabs[2:]:
        with tab:
            _icicle(
                profile_tree.by_stack(row, profile.stacks),
                f"profile_stacks_{run}_{row.profile_id}",
                "Python call stacks, each line as wide as the time below it.",
            )


def _icicle(figure: dict[str, Any] | None, key: str, alt: str) -> None:
    if figure is None:
        st.caption("n/a: not recorded in this profile.")
        return
    st.plotly_chart(figure, theme=None, key=key, config=dict(_CHART), alt=alt)
    st.caption("Click a part to look inside; click the bar on top to go back.")


def _trace(view: RunView, row: ProfileRow) -> None:
    """Draw the download of the trace, which is read on request; or why it is missing."""
    trace = profile_data.trace(view.folder, row)
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="profile_trace"):
        if trace.path is not None:
            capture_link(
                f"Trace ({words.size(trace.size_bytes)})",
                view.folder,
                trace.path.name,
                "Every operator and kernel on a timeline, in Chrome's trace format, compressed.",
            )
            st.caption(_PERFETTO, width="content")
        if trace.reason and not (row.file is None and row.left_out):
            st.caption(f":material/info: {plain(trace.reason)}", width="content")
    if row.left_out:
        st.caption(plain(f"Left out: {row.left_out}"))
    if row.on_device and view.device is not None and view.device.kind is DeviceKind.CUDA:
        st.caption(plain(_NSIGHT))


_PERFETTO = "To view it, drop the file on ui.perfetto.dev; it stays in your browser."
_NSIGHT = "For Nsight Systems turn on the setting nvtx, which marks the phases of a step as named ranges."
