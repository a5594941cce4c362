"""The scalars of a run without steps: an imported TensorBoard log."""

import streamlit as st

from dashboard import canvas, state
from dashboard.charts import scalars as charts
from dashboard.components import scalar_selection
from dashboard.data.runs import RunView
from dashboard.data.scalars import losses_first, read_all
from dashboard.view_models.live import scalar_of
from harness.store.reader import LogReader


def scalar_chart(view: RunView) -> bool:
    """Draw the run's scalars with a selection of them; return whether it has any. Raises LogError."""
    with LogReader(view.folder.log) as reader:
        names = reader.script.scalar_names()
        if not names:
            return False
        key = state.scalars_key(view.folder.run_id)
        st.session_state.setdefault(key, losses_first(names))
        chosen = scalar_selection(names, key)
        series = read_all(reader.script, chosen)
    if series:
        revision = "/".join([view.folder.run_id, *chosen])
        figure = charts.figure([scalar_of(one) for one in series], revision)
        canvas.live_plotly(figure, key=state.Key.SCALAR_CHART)
    return True
