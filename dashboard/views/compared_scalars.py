"""The scalars of several runs in common panels, with a selection of them."""

from collections.abc import Sequence

import numpy as np
import streamlit as st

from dashboard import canvas, state
from dashboard.charts import scalars as charts
from dashboard.charts.compare import Compared, along, text
from dashboard.components import heading, plain, scalar_selection
from dashboard.data.compare import read_scalars_of, scalar_names
from dashboard.data.scalars import default_scalars
from dashboard.view_models.live import scalar_of
from harness.analysis.compare.curves import CurveAxis


def scalar_curves(runs: Sequence[Compared], axis: CurveAxis) -> None:
    """Draw the selected scalars of all runs on the axis; nothing where no run has any."""
    names = scalar_names([run.facts.run_id for run in runs])
    if not names:
        return
    heading("Scalars")
    key = state.Key.COMPARED_SCALARS
    selected = state.widget_value(key)
    charted = default_scalars(names) if selected is None else [name for name in selected if name in names]
    state.set_value_of_drawn(key, charted)
    chosen = scalar_selection(names, key, charted)
    curves = [curve for at, run in enumerate(runs) for curve in _curves(run, at, axis, chosen)]
    if curves:
        revision = "/".join([axis.value, *(run.facts.run_id for run in runs), *chosen])
        figure = charts.overlaid(curves, axis, revision)
        with st.container(key="compare_scalars_panel"):
            canvas.live_plotly(figure, key=state.Key.COMPARE_SCALARS)
    without = [run.name for at, run in enumerate(runs) if at not in {curve.at for curve in curves}]
    if chosen and without:
        st.caption(plain(f"n/a for {', '.join(without)}: no value of these on this axis."))


def _curves(run: Compared, at: int, axis: CurveAxis, names: Sequence[str]) -> Sequence[charts.RunScalar]:
    curves = []
    for series in read_scalars_of(run.facts.run_id, names):
        scalar = scalar_of(series)
        x = along(run, axis, scalar.step)
        if np.isfinite(x).any():
            curves.append(charts.RunScalar(series.name, text(run.name), at, x, scalar.mean))
    return curves
