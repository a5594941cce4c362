"""The empty_cache() calls of a run: memory released, and extra time of the steps after each."""

from collections.abc import Sequence

import streamlit as st

from dashboard.components import heading, table
from harness import words
from harness.analysis.memory.empty_cache import EmptyCacheEffect


def empty_cache_list(effects: Sequence[EmptyCacheEffect]) -> None:
    """Draw a table row for each call, the newest first."""
    heading(
        "empty_cache()",
        help="Releases memory that the allocator caches for later tensors. Later steps have to reserve it "
        "again, which takes time: it helps other processes, rarely this run.",
    )
    if not effects:
        st.caption("empty_cache() was not called in this run.")
        return
    table(
        [_row(one) for one in effects],
        key="emptied_table",
        columns={
            "Released": st.column_config.TextColumn(help="Reserved memory returned to the system."),
            "Reserved again": st.column_config.TextColumn(
                help="Part of it that the allocator reserved again within the steps analyzed."
            ),
            "Call time": st.column_config.TextColumn(help="How long training waited for the call."),
            "Extra time": st.column_config.TextColumn(
                help="Total extra time of the steps after the call compared with the steps before it. A "
                "change of settings ends the comparison.",
                width="medium",
            ),
        },
        alt="Memory released and time taken by each empty_cache() call.",
    )


def _row(one: EmptyCacheEffect) -> dict[str, str]:
    return {
        "Step": words.count(one.step),
        "Released": words.size(one.freed_bytes),
        "Reserved again": words.size(one.regrown_bytes),
        "Call time": words.duration(one.took_ns),
        "Extra time": _cost(one),
    }


def _cost(one: EmptyCacheEffect) -> str:
    steps = words.plural(one.steps, "step")
    if one.is_visible is None:
        return f"{words.NOT_AVAILABLE}: too few steps around it"
    if not one.is_visible:
        return f"none visible in {steps}"
    return f"{words.duration(one.extra_ns)} over {steps}"
