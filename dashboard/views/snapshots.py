"""Memory snapshots: the request, live allocations, a comparison of two, and the raw file."""

from collections.abc import Sequence
from functools import partial

import streamlit as st

from dashboard.charts import allocations
from dashboard.commands import send_click
from dashboard.components import (
    count_column,
    decimal_column,
    heading,
    percent_column,
    plain,
    size_change_column,
    size_column,
    table,
)
from dashboard.controls import command_button, disabled_reason
from dashboard.data import changes as change_data
from dashboard.data import memory as memory_data
from dashboard.data.runs import RunView
from dashboard.download_links import capture_link
from dashboard.views.changes import request_pill
from harness import words
from harness.analysis.memory.snapshots import compare, suspect_sentence
from harness.errors import LogError
from harness.records.memory import AllocationRow, SnapshotReason, SnapshotRow, reason_in_log
from harness.records.run import CommandKind

# The newest requests among which the last one for a snapshot is searched.
_MAX_REQUESTS = 40
_PLACE = {
    "blocks": count_column("Blocks", "Allocated blocks, about one per tensor."),
    "category": st.column_config.TextColumn("Kind", help="Use of the memory."),
    "module": st.column_config.TextColumn("Module", help="The module that was executing at allocation."),
    "site": st.column_config.TextColumn(
        "Allocation site", width="large", help="The line of code that allocated it, or its name."
    ),
}
_LIVE_COLUMNS = {
    "held_bytes": size_column("Live", "Live memory of this site."),
    "share_pct": percent_column("Share", "Share of allocated memory."),
    "retained_bytes": size_column("Retained", "Allocated during the recorded steps and not freed."),
    **_PLACE,
}
_CHANGES = {
    "change_bytes": size_change_column("Change", "Difference of live memory."),
    "before_bytes": size_column("Before", "In the first snapshot."),
    "after_bytes": size_column("After", "In the second snapshot."),
    "what": st.column_config.TextColumn(
        "Status", help="A site cut from one of the lists appears as new or gone."
    ),
    **_PLACE,
    "blocks": decimal_column("Blocks", 0, "Difference in number of blocks.", sign="+"),
}


def snapshots(view: RunView, snapshot_rows: Sequence[SnapshotRow]) -> None:
    """Draw the button, the selected snapshot, and a comparison if there are two or more."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="snapshot_bar"):
        heading(
            "Live allocations",
            help="A snapshot records every allocation for a few steps and lists live memory by allocation "
            "site. The recorded steps are slower; the slowdown is shown.",
        )
        _last_request(view)
        st.space("stretch")
        command_button(
            "snapshot",
            "Snapshot now",
            ":material/photo_camera:",
            "Records the allocations of the next steps and lists those still alive.",
            disabled_reason(view),
            on_click=partial(send_click, view.folder, CommandKind.SNAPSHOT),
        )
    choices = [row for row in snapshot_rows if row.reason != SnapshotReason.START or row.sites]
    if not choices:
        st.caption("No snapshot of this run.")
        return
    _one(view, choices)
    if len(choices) > 1:
        _two(view, choices)


def _last_request(view: RunView) -> None:
    requests = [one for one in change_data.changes(view, _MAX_REQUESTS) if one.title == CommandKind.SNAPSHOT]
    request_pill(requests[:1])


def _name(row: SnapshotRow) -> str:
    reason = reason_in_log(row.reason)
    step, allocated = words.count(row.step), words.size(row.allocated_bytes)
    return f"#{row.snapshot_id} · step {step} · {reason} · {allocated}"


def _choose(label: str, choices: Sequence[SnapshotRow], at: int, key: str) -> SnapshotRow:
    """Draw a select box of snapshots, with the one at `at` selected first."""
    chosen = st.selectbox(
        label,
        range(len(choices)),
        index=at,
        key=f"{key}_{len(choices)}",
        format_func=lambda index: _name(choices[index]),
    )
    return choices[chosen]


def _one(view: RunView, choices: Sequence[SnapshotRow]) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        with st.container(width=420):
            row = _choose("Snapshot", choices, len(choices) - 1, "pick_snapshot")
        _raw(view, row)
    try:
        sites = memory_data.allocations(view.folder, row.snapshot_id)
    except LogError as error:
        st.error(plain(str(error)), icon=":material/database_off:")
        return
    st.caption(plain(allocations.cost(row)))
    suspect = suspect_sentence(sites, row.tracked_steps)
    if row.tracked_steps and sites and suspect not in row.message:
        st.caption(f":material/search: {plain(suspect)}")
    if not sites:
        st.caption(f"n/a: {plain(row.message)}")
        return
    event = table(
        [allocations.allocation_line(site, row.allocated_bytes) for site in sites],
        key=f"holders_{view.folder.run_id}_{row.snapshot_id}",
        on_select="rerun",
        selection_mode="single-row",
        columns=_LIVE_COLUMNS,
        alt="Live allocations by site, the largest first.",
    )
    _stack([sites[at] for at in event["selection"]["rows"] if at < len(sites)])


def _stack(chosen: Sequence[AllocationRow]) -> None:
    for site in chosen:
        if site.stack:
            st.caption("Allocation stack, innermost frame first.")
            st.code(site.stack, language=None, wrap_lines=True)
        else:
            st.caption("No stack: allocated before recording started, or identified by name.")


def _raw(view: RunView, row: SnapshotRow) -> None:
    """Draw the download of the raw snapshot."""
    path = memory_data.raw_snapshot(view.folder, row)
    if path is None:
        reason = "The raw file is missing in the run's folder."
        st.caption("This snapshot has no raw file." if row.file is None else reason)
        return
    capture_link(
        f"Raw snapshot ({words.size(row.file_bytes)})",
        view.folder,
        path.name,
        "Every block with its stack, in the format of torch.cuda.memory snapshots.",
    )
    st.caption(
        "To view it, drop the file on pytorch.org/memory_viz; it stays in your browser.",
        width="content",
    )


def _two(view: RunView, choices: Sequence[SnapshotRow]) -> None:
    """Draw the comparison of two snapshots."""
    with st.expander("Compare two snapshots", icon=":material/compare_arrows:", key="compare_snapshots"):
        followed = [at for at, row in enumerate(choices[:-1]) if row.tracked_steps]
        with st.container(horizontal=True, gap="small"):
            with st.container(width=330):
                before = _choose("From", choices, followed[0] if followed else 0, "compare_from")
            with st.container(width=330):
                after = _choose("To", choices, len(choices) - 1, "compare_to")
        try:
            before_sites = memory_data.allocations(view.folder, before.snapshot_id)
            after_sites = memory_data.allocations(view.folder, after.snapshot_id)
        except LogError as error:
            st.error(plain(str(error)), icon=":material/database_off:")
            return
        changes = compare(before_sites, after_sites)
        st.caption(plain(allocations.in_words(changes, before, after)))
        if changes:
            table(
                [allocations.change_line(change) for change in changes],
                key="comparison",
                columns=_CHANGES,
                alt="Allocation sites whose memory differs between two snapshots, the largest change first.",
            )
