"""What each module of the model holds, as a chart of the modules inside each other and as a table."""

from collections.abc import Sequence

import streamlit as st

from dashboard.charts.modules import Line, Part, icicle, known_parts, table_lines
from dashboard.components import plain, table
from harness import words
from harness.memory_records import ModuleMemoryRow, SnapshotRow

_COLUMNS = {
    "module": st.column_config.TextColumn("Module", help="Its path in the model.", width="medium"),
    "kind": st.column_config.TextColumn("Kind", help="Its class."),
    "parameters": st.column_config.NumberColumn(
        "Parameters, MiB", format="%.2f", help="Its own weights and buffers, without its children's."
    ),
    "gradients": st.column_config.NumberColumn(
        "Gradients, MiB",
        format="%.2f",
        help="One number for each weight that is trained, when it was looked at.",
    ),
    "optimizer": st.column_config.NumberColumn(
        "Optimizer, MiB", format="%.2f", help="What the optimizer remembers of its weights."
    ),
    "activations": st.column_config.NumberColumn(
        "Activations, MiB",
        format="%.2f",
        help="What its forward pass saved for the backward pass, at its most in a step.",
    ),
    "together": st.column_config.NumberColumn("Together, MiB", format="%.2f", help="The sum of its columns."),
}
_PART = "module_part"


def modules(rows: Sequence[ModuleMemoryRow], found_in: SnapshotRow | None) -> None:
    """The chart and the table, from the newest snapshot that looked at the modules."""
    st.markdown(
        "**By module**",
        help="What each part of the model holds: weights, their gradients, the optimizer's memory of them, "
        "and what the forward pass saves for the backward pass.",
    )
    parts = known_parts(rows)
    if found_in is None or not parts:
        st.caption(
            "n/a: the model's modules were not looked at. That happens once after the warm-up, and at every "
            "snapshot."
        )
        return
    when = f"As found at step {words.count(found_in.step)}."
    if Part.ACTIVATIONS not in parts:
        when += " Activations are n/a: they are known from a snapshot that followed every allocation."
    st.caption(plain(when))
    chart, lines = st.tabs(["Chart", "Table"])
    with chart:
        part = st.segmented_control(
            "What to show",
            [part.value for part in parts],
            default=parts[0].value,
            required=True,
            key=_PART,
            label_visibility="collapsed",
        )
        st.plotly_chart(
            icicle(rows, Part(part or parts[0])),
            theme=None,
            key="module_icicle",
            config={"displayModeBar": False, "displaylogo": False, "plotlyServerURL": ""},
            alt="The model's modules inside each other, each as wide as the memory it holds.",
        )
        st.caption("Click a module to look inside; click the bar on top to go back.")
    with lines:
        _table(table_lines(rows))


def _table(lines: Sequence[Line]) -> None:
    table(
        lines,
        columns=_COLUMNS,
        key="module_table",
        height=330,
        alt="Every module that holds memory itself. Click a heading to sort; the magnifier searches.",
    )
