"""What each empty_cache() gave back, and what it cost in the steps after it."""

from collections.abc import Sequence

import streamlit as st

from dashboard.components import table
from harness import words
from harness.analysis.memory.emptied import Emptied


def emptied_list(emptied: Sequence[Emptied]) -> None:
    """A line for each, the newest first."""
    st.markdown(
        "**empty_cache()**",
        help="It gives back memory that the allocator keeps for the next tensors. The steps after it have to "
        "ask for it again, which takes time: it helps other processes, seldom this one.",
    )
    if not emptied:
        st.caption("It was not called in this run.")
        return
    table(
        [_row(one) for one in emptied],
        key="emptied_table",
        columns={
            "Gave back": st.column_config.TextColumn(help="Reserved memory returned to the system."),
            "Took again": st.column_config.TextColumn(
                help="Of that, what the allocator asked for again within the steps looked at."
            ),
            "The call": st.column_config.TextColumn(help="How long training waited for the call itself."),
            "Cost after it": st.column_config.TextColumn(
                help="What the steps after it took longer than the steps before it, together. A change of "
                "settings ends what is looked at.",
                width="medium",
            ),
        },
        alt="What each empty_cache() gave back and cost.",
    )


def _row(one: Emptied) -> dict[str, str]:
    return {
        "Step": words.count(one.step),
        "Gave back": words.size(one.freed_bytes),
        "Took again": words.size(one.regrown_bytes),
        "The call": words.duration(one.took_ns),
        "Cost after it": _cost(one),
    }


def _cost(one: Emptied) -> str:
    steps = words.plural(one.steps, "step")
    if one.is_visible is None:
        return f"{words.NOT_AVAILABLE}: too few steps around it"
    if not one.is_visible:
        return f"none to be seen in {steps}"
    return f"{words.duration(one.extra_ns)} over {steps}"
