"""The scalars of a run without steps: an imported TensorBoard log."""

from dashboard import canvas, state
from dashboard.charts import scalars as charts
from dashboard.components import scalar_selection
from dashboard.data.runs import RunView
from dashboard.data.scalars import losses_first, names_of_run, read_run
from dashboard.view_models.live import scalar_of


def scalar_chart(view: RunView) -> bool:
    """Draw the run's scalars with a selection of them; return whether it has any. Raises LogError."""
    names = names_of_run(view.folder)
    if not names:
        return False
    selected = state.selected_scalars(view.folder.run_id)
    charted = losses_first(names) if selected is None else [name for name in selected if name in names]
    chosen = scalar_selection(names, state.scalars_key(view.folder.run_id), charted)
    series = read_run(view.folder, chosen)
    if series:
        revision = "/".join([view.folder.run_id, *chosen])
        figure = charts.figure([scalar_of(one) for one in series], revision)
        canvas.live_plotly(figure, key=state.Key.SCALAR_CHART)
    return True
