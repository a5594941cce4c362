"""The Tune page: the search for the best settings of a model, its progress and its results."""

import streamlit as st

from dashboard import canvas, state
from dashboard.charts import tune as charts
from dashboard.components import plain, show_problem, table
from dashboard.data import tunes
from dashboard.data.own_models import models
from dashboard.data.runs import read_only
from harness import words
from harness.errors import StepscopeError
from harness.settings.resolve import resolve
from harness.settings.spec import SPECS
from harness.tune.results import (
    RankedRow,
    batch_sentence,
    command_line,
    ranking,
    waterfall,
    winner_settings,
)
from harness.tune.rows import Goal, Tune, TuneState
from harness.tune.snippet import snippet

_POLL_S = 1.0
_BUDGETS_S = (120, 300, 600, 1800, 3600)
_DEFAULT_BUDGET_S = 600
_GOALS = {Goal.THROUGHPUT.value: "samples/s", Goal.MEMORY.value: "peak memory"}
_EXPLANATION = (
    "Compares each setting by itself with the baseline in one warm run, then combines those that are better. "
    "Results are those of this machine; other work on it makes the intervals wider."
)


def page() -> None:
    """Draw the page."""
    st.markdown("### Tune")
    show_problem()
    reason = read_only()
    if reason is None:
        _form()
    else:
        st.info(plain(reason), icon=":material/visibility:")
    ids = tunes.tune_ids()
    if not ids:
        st.caption(_EXPLANATION)
        return
    if state.widget_value(state.Key.TUNE) not in ids:
        state.put(state.Key.TUNE, ids[0])
    st.selectbox("Tune", ids, key=state.Key.TUNE)
    view = tunes.view_tune(str(state.widget_value(state.Key.TUNE)))
    is_running = view is not None and view.is_running
    st.fragment(_result, run_every=_POLL_S if is_running else None)(is_running)


def _form() -> None:
    usable = {key: spec for key, spec in models().items() if spec.missing is None}
    with st.container(border=True, key="tune_form"):
        model_column, size_column, goal_column, budget_column = st.columns(4, vertical_alignment="bottom")
        with model_column:
            names = list(usable)
            default = names.index(str(SPECS["model"].default))
            model = st.selectbox(
                "Model", names, default, key="tune_model", format_func=lambda key: usable[key].title
            )
        with size_column:
            presets = [preset.name for preset in usable[model].presets]
            preset = st.selectbox("Size", presets, key=f"tune_size_{model}")
        with goal_column:
            goal = st.selectbox("Improve", list(_GOALS), key="tune_goal", format_func=_GOALS.__getitem__)
        with budget_column:
            budget_s = st.selectbox(
                "Time",
                _BUDGETS_S,
                _BUDGETS_S.index(_DEFAULT_BUDGET_S),
                key="tune_budget",
                format_func=lambda seconds: f"{seconds // 60} min",
            )
        if st.button("Start", key="tune_start", type="primary", icon=":material/play_arrow:"):
            _start(model, preset, Goal(goal), budget_s)


def _start(model: str, preset: str, goal: Goal, budget_s: float) -> None:
    try:
        folder = tunes.start_tune(resolve({"model": model, "preset": preset}), goal, budget_s)
    except StepscopeError as error:
        state.set_problem(str(error))
    else:
        state.put(state.Key.TUNE, folder.tune_id)
    st.rerun()


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
            stop = (tunes.stop_tune, view)
            st.button("Stop", key="tune_stop", icon=":material/stop:", on_click=_request, args=stop)
            return
        is_bad = tune.state is TuneState.FAILED
        (st.error if is_bad else st.info)(plain(tune.message))
        if tune.state is TuneState.STOPPED and read_only() is None:
            st.button(
                "Continue",
                key="tune_continue",
                icon=":material/resume:",
                on_click=_request,
                args=(tunes.resume_tune, view),
            )


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
    baseline = f"{settings.model} {settings.preset}, batch {settings.batch_size}, on {device}"
    st.caption(plain(f"Baseline: {baseline}. {batch_sentence(tune)}"))


def _table(rows: list[RankedRow]) -> None:
    table(
        [_cells(row) for row in rows],
        alt="Settings by samples per second, with 95 % intervals.",
        columns={"Settings": st.column_config.TextColumn(width="medium")},
        key="tune_table",
        height="content",
    )


def _cells(row: RankedRow) -> dict[str, str | None]:
    rate, step = row.samples_per_s, row.step_ns
    interval = None
    if rate is not None and rate.low != rate.high:
        low, high = (words.fine_rate(value).removesuffix(" samples/s") for value in (rate.low, rate.high))
        interval = f"{low} to {high}"
    marks = [mark for mark, is_set in (("best", row.is_winner), ("Pareto front", row.is_on_front)) if is_set]
    return {
        "Settings": row.title,
        "": ", ".join(marks),
        "Samples/s": words.fine_rate(None if rate is None else rate.value).removesuffix(" samples/s"),
        "95 % interval": interval or words.NOT_AVAILABLE,
        "Step time": words.fine_duration(None if step is None else step.value),
        "Peak allocated": words.size(None if row.peak_bytes is None else row.peak_bytes.value),
        "Verdict": row.verdict,
        "Note": row.note,
    }


def _charts(tune: Tune, rows: list[RankedRow]) -> None:
    front = charts.front(rows, f"front {tune.tune_id}")
    steps = charts.waterfall(waterfall(tune), f"waterfall {tune.tune_id}")
    left, right = st.columns(2)
    with left:
        if front is not None:
            st.markdown("#### Samples/s against memory")
            canvas.live_plotly(front, key=state.Key.TUNE_FRONT)
    with right:
        if steps is not None:
            st.markdown("#### From the baseline to the best settings")
            canvas.live_plotly(steps, key=state.Key.TUNE_WATERFALL)


def _winner(tune: Tune) -> None:
    if not tune.trials or tune.device is None:
        return
    best = winner_settings(tune)
    if best == tune.baseline:
        st.caption("Nothing is measurably better than the baseline so far.")
        return
    st.markdown("#### Best settings")
    st.code(command_line(best), language="bash", wrap_lines=True)
    with st.expander("In a loop of your own"):
        st.code(snippet(best, tune.device.kind), language="python")
