"""Memory of each module of the model, as an icicle chart and as a table."""

from collections.abc import Sequence

import streamlit as st

from dashboard.charts.modules import MemoryKind, ModuleLine, icicle, named_parts, table_lines
from dashboard.components import heading, plain, size_column, table
from harness import words
from harness.records.memory import ModuleMemoryRow, SnapshotRow

_COLUMNS = {
    "module": st.column_config.TextColumn("Module", help="Its path in the model.", width="medium"),
    "kind": st.column_config.TextColumn("Kind", help="Its class."),
    "parameters": size_column("Parameters", "Its own parameters and buffers, without its children's."),
    "gradients": size_column("Gradients", "Gradients of its trained parameters at the time of the snapshot."),
    "optimizer": size_column("Optimizer", "Optimizer state of its parameters."),
    "activations": size_column(
        "Activations", "Tensors saved by its forward pass for the backward pass, at their peak within a step."
    ),
    "together": size_column("Total", "Sum of the columns."),
}
_PART = "module_part"


def modules(rows: Sequence[ModuleMemoryRow], snapshot: SnapshotRow | None) -> None:
    """Draw the chart and the table, from the newest snapshot that inspected the modules."""
    heading(
        "By module",
        help="Memory of each part of the model: parameters, gradients, optimizer state, and activations that "
        "the forward pass saves for the backward pass.",
    )
    parts = named_parts(rows)
    if snapshot is None or not parts:
        st.caption(
            "n/a: the model's modules have not been inspected. This happens once after the warm-up and "
            "with every snapshot."
        )
        return
    when = f"At step {words.count(snapshot.step)}."
    if MemoryKind.ACTIVATIONS not in parts:
        when += " Activations are n/a: they need a snapshot that records every allocation."
    st.caption(plain(when))
    chart, lines = st.tabs(["Chart", "Table"])
    with chart:
        part = st.segmented_control(
            "Kind of memory",
            [part.value for part in parts],
            default=parts[0].value,
            required=True,
            key=_PART,
            label_visibility="collapsed",
        )
        st.plotly_chart(
            icicle(rows, MemoryKind(part or parts[0])),
            theme=None,
            key="module_icicle",
            config={"displayModeBar": False, "displaylogo": False, "plotlyServerURL": ""},
            alt="The model's nested modules, each as wide as its memory.",
        )
        st.caption("Click a module to look inside; click the bar on top to go back.")
    with lines:
        _table(table_lines(rows))


def _table(lines: Sequence[ModuleLine]) -> None:
    table(
        lines,
        columns=_COLUMNS,
        key="module_table",
        alt="Every module with memory of its own. Click a heading to sort; the magnifier searches.",
    )
