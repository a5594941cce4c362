"""The Runs page: every run of the home, to open, compare, copy and delete."""

import time
from collections.abc import Sequence

import streamlit as st

from dashboard import buckets, canvas, state
from dashboard.charts import compare
from dashboard.components import plain, read_only_badge, show_problem, state_words
from dashboard.data import runs as run_data
from dashboard.data.figures import whole_run
from dashboard.views.script import script_facts
from dashboard.views.welcome import welcome
from harness import words
from harness.errors import StepscopeError
from harness.supervisor.summary import RunSummary

_REFRESH_S = 5.0
_MOST_COMPARED = 8
_MOST_PROBLEMS = 5
_LONGEST_CELL = 80
_LONGEST_MESSAGE = 1_000
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
    st.fragment(_table, run_every=_REFRESH_S if goes_on else None)(_Listed(summaries))


class _Listed:
    """The runs listed on the page: the first tick draws those already read, later ticks read them again."""

    def __init__(self, summaries: Sequence[RunSummary]) -> None:
        self.run_ids = [run.run_id for run in summaries]
        self._fresh: Sequence[RunSummary] | None = summaries

    def take(self) -> Sequence[RunSummary]:
        """Return the current runs."""
        fresh, self._fresh = self._fresh, None
        return run_data.supervisor().runs() if fresh is None else fresh


def _table(listed: _Listed) -> None:
    summaries = listed.take()
    if [run.run_id for run in summaries] != listed.run_ids:
        st.rerun()
    event = st.dataframe(
        [_row(run) for run in summaries],
        key=f"{state.Key.TABLE}_{hash(tuple(listed.run_ids))}",
        hide_index=True,
        placeholder=words.NOT_AVAILABLE,
        on_select="rerun",
        selection_mode="multi-row",
        column_config={
            "Name": st.column_config.TextColumn(width="medium"),
            "Status": st.column_config.TextColumn(width="large"),
            **{name: st.column_config.TextColumn(alignment="right") for name in _NUMBERS},
        },
        alt="All runs, the newest first. Select one to open it, several to compare them.",
    )
    _damaged(summaries)
    chosen = [summaries[at] for at in event["selection"]["rows"] if at < len(summaries)]
    if not chosen:
        actions = "open it or copy its folder" + (", or to delete it" if run_data.read_only() is None else "")
        st.caption(f"Select a run to {actions}; select several to compare them.")
    elif len(chosen) == 1:
        _one(chosen[0])
    else:
        _several(chosen)


def _row(run: RunSummary) -> dict[str, str]:
    end_ns = run.ended_unix_ns if run.status.state.is_over else time.time_ns()
    began_ns = run.started_unix_ns
    lasted_s = None if began_ns is None or end_ns is None else (end_ns - began_ns) / 1e9
    return {
        "Name": run.name,
        "State": _state(run),
        "Model": words.NOT_AVAILABLE if run.subject is None else words.clip(run.subject, _LONGEST_CELL),
        "Device": words.NOT_AVAILABLE
        if run.device is None
        else words.clip(run.device.torch_name, _LONGEST_CELL),
        "Steps": words.count(run.steps),
        "Step time": words.milliseconds(run.step_ns),
        "Throughput": words.rate(run.samples_per_s),
        "Peak": words.size(run.peak_allocated_bytes),
        "Loss": words.figure(run.loss),
        "Started": words.moment(began_ns or run.created_unix_ns),
        "Duration": words.span(lasted_s),
        "Status": words.clip(run.status.message, _LONGEST_MESSAGE),
    }


def _state(run: RunSummary) -> str:
    if run.problem is not None:
        return "unreadable"
    return state_words(run.status.state) + (" · simulated" if run.is_simulated else "")


def _damaged(summaries: Sequence[RunSummary]) -> None:
    problems = [(run.name, run.problem) for run in summaries if run.problem is not None]
    for name, problem in problems[:_MOST_PROBLEMS]:
        st.warning(f"{plain(name)}: {plain(problem)}", icon=":material/database_off:")
    if len(problems) > _MOST_PROBLEMS:
        st.caption(f"{len(problems) - _MOST_PROBLEMS} more runs cannot be read; see their status.")


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
        if run.script is not None:
            script_facts(run.script, run.versions)
        st.caption("This folder is the whole run. Copy it to the home of another machine to open it there.")
        st.code(words.printable(str(run.path)), language=None, wrap_lines=True)


def _delete(run: RunSummary) -> None:
    with st.popover("Delete", icon=":material/delete:", key="delete_run"):
        st.text(f"Delete {run.name}? Its log is removed permanently.")
        if st.button("Delete permanently", key="delete_run_confirmed", type="primary"):
            try:
                run_data.supervisor().delete(run_data.find(run.run_id))
            except StepscopeError as error:
                state.set_problem(str(error))
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
            steps = buckets.of_steps(series.columns, series.bucket_size, series.rows, series.unobserved)
            compared.append(compare.Compared(run.name, steps))
    if len(chosen) > _MOST_COMPARED:
        st.caption(f"Showing the first {_MOST_COMPARED} of {len(chosen)}.")
    canvas.live_plotly(compare.figure(compared), key=state.Key.COMPARE_CHART)
