"""Snapshots: taking one, what held memory in it, what changed between two, and the raw file."""

from collections.abc import Sequence

import streamlit as st

from dashboard.asking import ask
from dashboard.charts import holders
from dashboard.components import plain, table
from dashboard.controls import why_not
from dashboard.data import changes as change_data
from dashboard.data import memory as memory_data
from dashboard.data.runs import Look
from dashboard.views.changes import request_pill
from harness import words
from harness.analysis.memory.snapshots import compare, suspect_sentence
from harness.errors import LogError
from harness.memory_records import AllocationRow, SnapshotReason, SnapshotRow
from harness.records import CommandKind

_ASKED = 40
"""Among so many newest requests the last for a snapshot is looked for."""
_PLACE = {
    "blocks": st.column_config.NumberColumn(
        "Blocks", format="localized", help="Pieces of memory, about one a tensor."
    ),
    "category": st.column_config.TextColumn("Kind", help="What it is used for."),
    "module": st.column_config.TextColumn("Module", help="The part of the model at work when it was made."),
    "site": st.column_config.TextColumn(
        "Where", width="large", help="The line of code that allocated it, or what it is."
    ),
}
_HOLDERS = {
    "held_mib": st.column_config.NumberColumn("Held, MiB", format="%.2f", help="What was alive from there."),
    "share": st.column_config.NumberColumn("Share", format="percent", help="Of all that was allocated."),
    "grew_mib": st.column_config.NumberColumn(
        "Grew, MiB",
        format="%.2f",
        help="What the steps followed for the snapshot allocated there and did not free.",
    ),
    **_PLACE,
}
_CHANGES = {
    "change_mib": st.column_config.NumberColumn(
        "Change, MiB", format="%+.2f", help="More or less than before."
    ),
    "before_mib": st.column_config.NumberColumn("Before, MiB", format="%.2f", help="Held in the first."),
    "after_mib": st.column_config.NumberColumn("After, MiB", format="%.2f", help="Held in the second."),
    "what": st.column_config.TextColumn(
        "What", help="A place cut from one of the lists reads as new or gone."
    ),
    **_PLACE,
    "blocks": st.column_config.NumberColumn("Blocks", format="%+d", help="Blocks more or fewer."),
}


def snapshots(seen: Look, taken: Sequence[SnapshotRow]) -> None:
    """The button, the snapshot chosen, and a comparison where there are two."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="snapshot_bar"):
        st.markdown(
            "**What holds it**",
            help="A snapshot follows every allocation for a few steps and lists what is alive, by the line "
            "of code that made it. The steps it follows are slower; their cost is shown.",
        )
        _last_request(seen)
        st.space("stretch")
        reason = why_not(seen)
        st.button(
            "Snapshot now",
            key="snapshot",
            icon=":material/photo_camera:",
            disabled=reason is not None,
            help=plain(reason or "Follows the next steps' allocations and lists what is alive after them."),
            on_click=ask,
            args=(seen.folder, CommandKind.SNAPSHOT),
        )
    told = [row for row in taken if row.reason != SnapshotReason.START or row.sites]
    if not told:
        st.caption("No snapshot of this run yet.")
        return
    _one(seen, told)
    if len(told) > 1:
        _two(seen, told)


def _last_request(seen: Look) -> None:
    asked = [one for one in change_data.changes(seen, _ASKED) if one.title == CommandKind.SNAPSHOT]
    request_pill(asked[:1])


def _name(row: SnapshotRow) -> str:
    held = words.size(row.allocated_bytes)
    return f"#{row.snapshot_id} · step {words.count(row.step)} · {row.reason} · {held}"


def _choose(label: str, told: Sequence[SnapshotRow], at: int, key: str) -> SnapshotRow:
    """A choice of snapshots, the one at `at` to begin with."""
    chosen = st.selectbox(
        label,
        range(len(told)),
        index=at,
        key=f"{key}_{len(told)}",
        format_func=lambda index: _name(told[index]),
    )
    return told[chosen]


def _one(seen: Look, told: Sequence[SnapshotRow]) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        with st.container(width=420):
            row = _choose("Snapshot", told, len(told) - 1, "pick_snapshot")
        _raw(seen, row)
    try:
        sites = memory_data.allocations(seen.folder, row.snapshot_id)
    except LogError as error:
        st.error(plain(str(error)), icon=":material/database_off:")
        return
    st.caption(plain(holders.cost(row)))
    suspect = suspect_sentence(sites, row.tracked_steps)
    if row.tracked_steps and sites and suspect not in row.message:
        st.caption(f":material/search: {plain(suspect)}")
    if not sites:
        st.caption(f"n/a: {plain(row.message)}")
        return
    event = table(
        [holders.holder_line(site, row.allocated_bytes) for site in sites],
        key=f"holders_{seen.folder.run_id}_{row.snapshot_id}",
        height=300,
        on_select="rerun",
        selection_mode="single-row",
        columns=_HOLDERS,
        alt="What was alive, by the place that allocated it, the largest first.",
    )
    _stack([sites[at] for at in event["selection"]["rows"] if at < len(sites)])


def _stack(chosen: Sequence[AllocationRow]) -> None:
    for site in chosen:
        if site.stack:
            st.caption("How it got there, innermost first.")
            st.code(site.stack, language=None, wrap_lines=True)
        else:
            st.caption("No stack: it was allocated before the snapshot began to follow, or is known by name.")


def _raw(seen: Look, row: SnapshotRow) -> None:
    """The raw snapshot to download, read when it is asked for."""
    path = memory_data.raw_snapshot(seen.folder, row)
    if path is None:
        gone = "Its raw file is gone. (Of more than 256 MB none is handed out here.)"
        st.caption("No raw file was kept for this snapshot." if row.file is None else gone)
        return
    st.download_button(
        f"Raw snapshot ({words.size(row.file_bytes)})",
        data=path.read_bytes,
        file_name=path.name,
        mime="application/octet-stream",
        key="download_snapshot",
        icon=":material/download:",
        on_click="ignore",
        help="Every block and its stack, in the format of torch.cuda.memory's own snapshots.",
    )
    st.caption(
        "To look into it, open pytorch.org/memory_viz and drop the file there: it is read in the browser.",
        width="content",
    )


def _two(seen: Look, told: Sequence[SnapshotRow]) -> None:
    """What changed between two snapshots."""
    with st.expander("Compare two snapshots", icon=":material/compare_arrows:", key="compare_snapshots"):
        followed = [at for at, row in enumerate(told[:-1]) if row.tracked_steps]
        with st.container(horizontal=True, gap="small"):
            with st.container(width=330):
                before = _choose("From", told, followed[0] if followed else 0, "compare_from")
            with st.container(width=330):
                after = _choose("To", told, len(told) - 1, "compare_to")
        try:
            held = memory_data.allocations(seen.folder, before.snapshot_id)
            now = memory_data.allocations(seen.folder, after.snapshot_id)
        except LogError as error:
            st.error(plain(str(error)), icon=":material/database_off:")
            return
        changes = compare(held, now)
        st.caption(plain(holders.in_words(changes, before, after)))
        if changes:
            table(
                [holders.change_line(change) for change in changes],
                key="comparison",
                height=280,
                columns=_CHANGES,
                alt="The places whose memory differs between two snapshots, the largest change first.",
            )
