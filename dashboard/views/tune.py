"""The Tune page: the search for the best settings of a model, its progress and its results."""

import streamlit as st

from dashboard import canvas, state
from dashboard.callbacks import to_the_end
from dashboard.charts import tune as charts
from dashboard.components import heading, page_title, plain, show_problem, table
from dashboard.data import tunes
from dashboard.data.runs import read_only
from dashboard.views.tune_form import tune_form
from harness import words
from harness.catalog.own import model_and_size
from harness.errors import StepscopeError
from harness.tune.launch import MORE_BUDGET_S, needs_budget
from harness.tune.planning import unmeasured
from harness.tune.results import (
    RankedRow,
    baseline_sentence,
    batch_sentence,
    command_line,
    ranking,
    waterfall,
    winner_settings,
)
from harness.tune.rows import Tune, TuneState
from harness.tune.snippet import snippet

_POLL_S = 1.0
# The heading of the marks, and a width for all of them.
_STANDING, _STANDING_PX = "Standing", 135
_EXPLANATION = (
    "Compares each setting by itself with the baseline in one warm run, then combines those that are better. "
    "Results are those of this machine; other work on it makes the intervals wider."
)


def page() -> None:
    """Draw the page."""
    page_title("Tune")
    show_problem()
    reason = read_only()
    if reason is None:
        tune_form()
    else:
        st.info(plain(reason), icon=":material/visibility:")
    titles = tunes.tune_titles()
    if not titles:
        st.caption(_EXPLANATION)
        return
    if state.widget_value(state.Key.TUNE) not in titles:
        state.set_value_of_drawn(state.Key.TUNE, next(iter(titles)))
    st.selectbox("Tune", list(titles), key=state.Key.TUNE, format_func=lambda key: titles.get(key, key))
    view = tunes.view_tune(str(state.widget_value(state.Key.TUNE)))
    is_running = view is not None and view.is_running
    st.fragment(_result, run_every=_POLL_S if is_running else None)(is_running)


def _result(was_running: bool) -> None:
    view = tunes.view_tune(str(state.widget_value(state.Key.TUNE)))
    if view is None or view.is_running != was_running:
        st.rerun()
    if view.tune is None:
        st.warning(plain(view.problem or ""), icon=":material/warning:")
        return
    _progress(view, view.tune)
    _summary(view.tune)
    rows = ranking(view.tune)
    if rows:
        _table(rows)
    _charts(view.tune, rows)
    _winner(view.tune)


def _progress(view: tunes.TuneView, tune: Tune) -> None:
    """Draw the progress with Stop, or the outcome with Continue."""
    with st.container(horizontal=True, vertical_alignment="center"):
        if view.is_running:
            share = min(1.0, tune.spent_s / tune.budget_s)
            st.progress(share, text=plain(_progress_text(tune)))
            st.button(
                "Stopping…" if view.is_stopping else "Stop",
                key="tune_stop",
                icon=":material/stop:",
                disabled=view.is_stopping,
                on_click=_request,
                args=(tunes.stop_tune, view),
            )
            return
        is_bad = tune.state is TuneState.FAILED
        (st.error if is_bad else st.info)(plain(tune.message))
        if _can_continue(tune) and read_only() is None:
            more = f" for {MORE_BUDGET_S / 60:.0f} min" if needs_budget(tune) else ""
            st.button(
                f"Continue{more}",
                key="tune_continue",
                icon=":material/resume:",
                on_click=_request,
                args=(tunes.resume_tune, view),
            )


def _can_continue(tune: Tune) -> bool:
    """Return whether a tune that has ended has comparisons left: stopped, or out of time."""
    return tune.state is TuneState.STOPPED or (tune.state is TuneState.COMPLETED and bool(unmeasured(tune)))


@to_the_end
def _request(action: object, view: tunes.TuneView) -> None:
    assert callable(action)
    try:
        action(view.folder)
    except StepscopeError as error:
        state.set_problem(str(error))


def _progress_text(tune: Tune) -> str:
    left = f"at most {words.span(tune.remaining_s)} left"
    progress = tune.progress
    if progress is None:
        return f"Starting the baseline; {left}" if tune.device is None else f"Planning; {left}"
    return f"{progress.title}: pair {progress.pair} of {progress.pairs}; {left}"


def _summary(tune: Tune) -> None:
    settings = tune.baseline
    device = words.NOT_AVAILABLE if tune.device is None else tune.device.name
    baseline = f"{model_and_size(settings.model, settings.preset)}, batch {settings.batch_size}, on {device}"
    st.caption(plain(f"Baseline: {baseline}. {batch_sentence(tune)}"))


def _table(rows: list[RankedRow]) -> None:
    table(
        [_cells(row) for row in rows],
        alt="Settings by samples per second, with 95 % intervals.",
        columns={
            "Settings": st.column_config.TextColumn(width="medium"),
            _STANDING: st.column_config.TextColumn(width=_STANDING_PX),
        },
        key="tune_table",
        height="content",
    )


def _cells(row: RankedRow) -> dict[str, str | None]:
    rate, step = row.samples_per_s, row.step_ns
    interval = None
    if rate is not None and rate.low != rate.high:
        low, high = (words.fine_rate(value, None) for value in (rate.low, rate.high))
        interval = f"{low} to {high}"
    marks = [mark for mark, is_set in (("best", row.is_winner), ("Pareto front", row.is_on_front)) if is_set]
    return {
        "Settings": row.title,
        _STANDING: ", ".join(marks),
        "Samples/s": words.fine_rate(None if rate is None else rate.value, None),
        "95 % interval": interval or words.NOT_AVAILABLE,
        "Step time": words.fine_duration(None if step is None else step.value),
        "Peak allocated": words.size(None if row.peak_bytes is None else row.peak_bytes.value),
        "Verdict": row.verdict,
        "Note": row.note,
    }


def _charts(tune: Tune, rows: list[RankedRow]) -> None:
    front = charts.front(rows, f"front {tune.tune_id}")
    steps = charts.waterfall(waterfall(tune), f"waterfall {tune.tune_id}")
    with st.container(key="tune_charts"):
        left, right = st.columns(2)
    with left:
        if front is not None:
            heading("Samples/s against memory")
            canvas.live_plotly(front, key=state.Key.TUNE_FRONT)
    with right:
        if steps is not None:
            heading("From the baseline to the best settings")
            canvas.live_plotly(steps, key=state.Key.TUNE_WATERFALL)


def _winner(tune: Tune) -> None:
    if not tune.trials or tune.device is None:
        return
    best = winner_settings(tune)
    if best == tune.baseline:
        st.caption(baseline_sentence(tune))
        return
    heading("Best settings")
    st.code(command_line(best), language="bash", wrap_lines=True)
    with st.expander("In a loop of your own"):
        st.code(snippet(best, tune.device.kind), language="python")
