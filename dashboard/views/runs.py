"""The Runs page: every run of the home, to open, compare, copy and delete."""

import time
from collections.abc import Sequence

import pandas as pd
import streamlit as st

from dashboard import canvas, frames, state
from dashboard.charts import compare
from dashboard.components import plain, read_only_badge, show_problem, state_words
from dashboard.data import runs as run_data
from dashboard.data.figures import whole_run
from dashboard.views.welcome import welcome
from harness import words
from harness.errors import StepscopeError
from harness.supervisor.summary import RunSummary

_REFRESH_S = 5.0
_MOST_COMPARED = 8
_NUMBERS = ("Steps", "Step time", "Throughput", "Peak", "Loss", "Duration")


def page() -> None:
    """Draw the page."""
    show_problem()
    try:
        summaries = run_data.supervisor().runs()
    except StepscopeError as error:
        st.error(plain(str(error)), icon=":material/error:")
        return
    if not summaries:
        welcome()
        return
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown("### Runs")
        st.space("stretch")
        if run_data.read_only() is not None:
            read_only_badge()
        elif st.button("New run", key="new_run", icon=":material/add:"):
            st.switch_page(state.page("new"))
    goes_on = any(not run.status.state.is_over for run in summaries)
    st.fragment(_table, run_every=_REFRESH_S if goes_on else None)([run.run_id for run in summaries])


def _table(listed: Sequence[str]) -> None:
    summaries = run_data.supervisor().runs()
    if [run.run_id for run in summaries] != list(listed):
        st.rerun()
    event = st.dataframe(
        pd.DataFrame([_row(run) for run in summaries]),
        key=f"{state.Key.TABLE}_{hash(tuple(listed))}",
        hide_index=True,
        placeholder=words.NOT_AVAILABLE,
        on_select="rerun",
        selection_mode="multi-row",
        column_config={
            "Name": st.column_config.TextColumn(width="medium"),
            "What it means": st.column_config.TextColumn(width="large"),
            **{name: st.column_config.TextColumn(alignment="right") for name in _NUMBERS},
        },
        alt="All runs, the newest first. Select one to open or delete it, several to compare them.",
    )
    _damaged(summaries)
    chosen = [summaries[at] for at in event["selection"]["rows"] if at < len(summaries)]
    if not chosen:
        st.caption(
            "Select a run to open it, to copy its folder or to delete it; select several to compare them."
        )
    elif len(chosen) == 1:
        _one(chosen[0])
    else:
        _several(chosen)


def _row(run: RunSummary) -> dict[str, str]:
    settings = run.settings
    end_ns = run.ended_unix_ns if run.status.state.is_over else time.time_ns()
    began_ns = run.started_unix_ns
    lasted_s = None if began_ns is None or end_ns is None else (end_ns - began_ns) / 1e9
    return {
        "Name": run.name,
        "State": state_words(run.status.state) + (" · simulated" if run.is_simulated else ""),
        "Model": words.NOT_AVAILABLE if settings is None else f"{settings.model} {settings.preset}",
        "Device": words.NOT_AVAILABLE if run.device is None else run.device.torch_name,
        "Steps": words.count(run.steps),
        "Step time": words.milliseconds(run.step_ns),
        "Throughput": words.rate(run.samples_per_s),
        "Peak": words.size(run.peak_allocated_bytes),
        "Loss": words.figure(run.loss),
        "Started": words.moment(began_ns or run.created_unix_ns),
        "Duration": words.span(lasted_s),
        "What it means": run.status.message,
    }


def _damaged(summaries: Sequence[RunSummary]) -> None:
    for run in summaries:
        if run.problem is not None:
            st.warning(f"{plain(run.name)}: {plain(run.problem)}", icon=":material/database_off:")


def _one(run: RunSummary) -> None:
    with st.container(border=True, key="run_actions"):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.text(run.name)
            st.space("stretch")
            if st.button("Open", key="open_run", type="primary", icon=":material/monitoring:"):
                st.switch_page(state.page("live"), query_params=state.run_query(run.run_id))
            if run_data.read_only() is None:
                _delete(run)
        st.text(run.status.message)
        st.caption("Its folder is the whole run: copy it to another machine's home to open it there.")
        st.code(str(run.path), language=None, wrap_lines=True)


def _delete(run: RunSummary) -> None:
    with st.popover("Delete", icon=":material/delete:", key="delete_run"):
        st.text(f"Delete {run.name}? Its log is removed for good.")
        if st.button("Delete for good", key="delete_run_confirmed", type="primary"):
            try:
                run_data.supervisor().delete(run_data.find(run.run_id))
            except StepscopeError as error:
                state.say_problem(str(error))
            st.rerun()


def _several(chosen: Sequence[RunSummary]) -> None:
    compared = []
    for run in chosen[:_MOST_COMPARED]:
        try:
            series = whole_run(run_data.find(run.run_id))
        except StepscopeError as error:
            st.warning(plain(str(error)))
            continue
        if series is not None:
            steps = frames.of_steps(series.columns, series.bucket_size, series.rows, series.unobserved)
            compared.append(compare.Compared(run.name, steps))
    if len(chosen) > _MOST_COMPARED:
        st.caption(f"The first {_MOST_COMPARED} of {len(chosen)} are drawn.")
    canvas.live_plotly(compare.figure(compared), key=state.Key.COMPARE_CHART)
