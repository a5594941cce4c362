"""The Runs page: every run of the home, to search, open, compare, label, copy and delete."""

import math
import time
from collections.abc import Sequence

import streamlit as st

from dashboard import canvas, state
from dashboard.charts import compare
from dashboard.components import page_title, plain, read_only_badge, show_problem
from dashboard.data import compare as compare_data
from dashboard.data import runs as run_data
from dashboard.download_links import report_link
from dashboard.view_models.runs import column_widths, table_rows
from dashboard.views.compare import MOST_RUNS
from dashboard.views.queue import queue_section
from dashboard.views.run_actions import delete_button, export_button, labels_button, tags_button
from dashboard.views.run_filter import select_runs
from dashboard.views.script import script_facts
from dashboard.views.welcome import welcome
from harness import words
from harness.errors import StepscopeError
from harness.records.entry import RunEntry
from harness.supervisor.logs import RECENT_STEPS

_REFRESH_S = 5.0
# The rows that the browser gets.
_ROWS_PER_PAGE = 50
# Of which so many are visible at once.
_VISIBLE_ROWS, _TABLE_PX = 14, 528
_TAGS_PX = 130
_MOST_NAME_PX = 200
_MOST_PROBLEMS = 5
# The ids of the selected runs, which stay selected while other runs start or are deleted.
_SELECTED = "runs_selected"
_NUMBERS = ("Steps", "Step time", "Throughput", "Peak", "Loss", "Duration")


def page() -> None:
    """Draw the page."""
    show_problem()
    try:
        entries = run_data.supervisor().entries()
    except StepscopeError as error:
        st.error(plain(str(error)), icon=":material/error:")
        return
    if not entries:
        queue_section()
        welcome()
        return
    with st.container(horizontal=True, vertical_alignment="center"):
        page_title("Runs")
        st.space("stretch")
        if run_data.read_only() is not None:
            read_only_badge()
        elif st.button("New run", key="new_run", icon=":material/add:"):
            st.switch_page(state.page("new"))
    queue_section()
    # Also where all runs have ended: another one may start from a shell or the queue.
    st.fragment(_list, run_every=_REFRESH_S)(_Listed(entries))


class _Listed:
    """The runs listed on the page."""

    def __init__(self, entries: Sequence[RunEntry]) -> None:
        self.run_ids = [run.run_id for run in entries]
        self._unused: Sequence[RunEntry] | None = entries

    def read(self) -> Sequence[RunEntry]:
        """Return the runs: at the first tick those already read for the page, later the current ones."""
        entries, self._unused = self._unused, None
        return run_data.supervisor().entries() if entries is None else entries


def _list(listed: _Listed) -> None:
    entries = listed.read()
    if [run.run_id for run in entries] != listed.run_ids:
        st.rerun()
    matching = select_runs(entries)
    if not matching:
        st.info(f"None of {words.plural(len(entries), 'run')} meets these criteria.")
        return
    place = st.container()
    page_entries = _page_of(matching, len(entries))
    with place:
        chosen = _table(page_entries)
    _damaged(page_entries)
    _chosen(chosen, matching)


def _page_of(matching: Sequence[RunEntry], total: int) -> Sequence[RunEntry]:
    """Draw the number of runs and the choice of a page, and return the runs of that page."""
    pages = math.ceil(len(matching) / _ROWS_PER_PAGE)
    of_all = f" of {words.count(total)}" if len(matching) < total else ""
    if pages == 1:
        if of_all:
            st.caption(f"{words.count(len(matching))}{of_all} runs")
        return matching
    with st.container(horizontal=True, vertical_alignment="center", key="runs_pages"):
        st.caption(f"{words.count(len(matching))}{of_all} runs", width="content")
        # With the width of its content it hides page 2 of 2.
        number = st.pagination(pages, key=f"runs_page_{pages}", width="stretch")
    return matching[(number - 1) * _ROWS_PER_PAGE : number * _ROWS_PER_PAGE]


def _table(entries: Sequence[RunEntry]) -> list[RunEntry]:
    """Draw the table, and return the selected runs."""
    rows = table_rows(entries, time.time_ns())
    run_ids = st.session_state.get(_SELECTED, ())
    selected = [at for at, run in enumerate(entries) if run.run_id in run_ids]
    widths = column_widths(rows)
    event = st.dataframe(
        rows,
        key=f"{state.Key.TABLE}_{hash(tuple(run.run_id for run in entries))}",
        hide_index=True,
        height=_TABLE_PX if len(entries) > _VISIBLE_ROWS else "auto",
        placeholder=words.NOT_AVAILABLE,
        on_select="rerun",
        selection_mode="multi-row",
        selection_default={"selection": {"rows": selected}},
        column_config={
            **{name: st.column_config.TextColumn(width=px) for name, px in widths.items()},
            "Name": st.column_config.TextColumn(width=min(widths["Name"], _MOST_NAME_PX)),
            "Tags": st.column_config.TextColumn(width=_TAGS_PX),
            "Note": st.column_config.TextColumn(width="medium"),
            "Status": st.column_config.TextColumn(width="large"),
            **{name: st.column_config.TextColumn(alignment="right", width=widths[name]) for name in _NUMBERS},
        },
        alt="A page of the runs. Select one to open it, several to compare them.",
    )
    st.caption(
        f"Step time (the median) and throughput are of the last {RECENT_STEPS} steps, without those of the "
        "warm-up; the loss is that of the last step. Compare has the figures of whole runs."
    )
    chosen = [entries[at] for at in event["selection"]["rows"] if at < len(entries)]
    st.session_state[_SELECTED] = [run.run_id for run in chosen]
    return chosen


def _damaged(entries: Sequence[RunEntry]) -> None:
    problems = [(run.name, run.problem) for run in entries if run.problem is not None]
    for name, problem in problems[:_MOST_PROBLEMS]:
        st.warning(f"{plain(name)}: {plain(problem)}", icon=":material/database_off:")
    if len(problems) > _MOST_PROBLEMS:
        more = words.plural(len(problems) - _MOST_PROBLEMS, "more run")
        st.caption(f"{more} cannot be read; see the status.")


def _chosen(chosen: Sequence[RunEntry], matching: Sequence[RunEntry]) -> None:
    """Draw what can be done with the selected runs."""
    if not chosen:
        actions = "open it or copy its folder" + (
            ", to label or delete it" if run_data.read_only() is None else ""
        )
        st.caption(f"Select a run to {actions}; select several to compare them.")
    elif len(chosen) == 1:
        _one(chosen[0])
    else:
        _bulk(chosen, matching)
        _several(chosen)


def _one(run: RunEntry) -> None:
    with st.container(border=True, key="run_actions"):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.text(run.name)
            st.space("stretch")
            if st.button("Open", key="open_run", type="primary", icon=":material/monitoring:"):
                st.switch_page(state.page("live"), query_params=state.run_query(run.run_id))
            report_link([run.run_id])
            export_button([run])
            if run_data.read_only() is None:
                labels_button(run)
                delete_button([run])
        st.text(run.message)
        if run.note:
            st.text(run.note)
        _origin(run)
        st.caption("This folder is the whole run. Copy it to the home of another machine to open it there.")
        st.code(run.path, language=None, wrap_lines=True)


def _origin(run: RunEntry) -> None:
    """Draw the command of a script's run."""
    if run.script is None:
        return
    try:
        summary = run_data.supervisor().summary(run_data.find(run.run_id))
    except StepscopeError:  # Deleted meanwhile, which the next tick notices.
        return
    if summary.script is not None:
        script_facts(summary.script, summary.versions)


def _bulk(chosen: Sequence[RunEntry], matching: Sequence[RunEntry]) -> None:
    """Draw what can be done with several runs, or with all that meet the criteria."""
    if run_data.read_only() is not None:
        return
    with (
        st.container(border=True, key="run_actions"),
        st.container(horizontal=True, vertical_alignment="center"),
    ):
        st.text(f"{words.plural(len(chosen), 'run')} selected")
        st.space("stretch")
        if len(matching) > len(chosen) and st.checkbox(
            f"All {words.count(len(matching))} listed", key="all_listed"
        ):
            chosen = matching
        export_button(chosen)
        tags_button(chosen)
        delete_button(chosen)


def _several(chosen: Sequence[RunEntry]) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        if len(chosen) > MOST_RUNS:
            st.caption(f"Showing the first {MOST_RUNS} of {len(chosen)}.")
        st.space("stretch")
        if st.button("Compare", key="compare_runs", type="primary", icon=":material/stacked_line_chart:"):
            query = state.comparison_query([run.run_id for run in chosen[:MOST_RUNS]])
            st.switch_page(state.page("compare"), query_params=query)
    compared = []
    for run in chosen[:MOST_RUNS]:
        try:
            compared.append(compare_data.read(run.run_id))
        except StepscopeError as error:
            st.warning(plain(str(error)))
    canvas.live_plotly(compare.figure(compare.distinct(compared)), key=state.Key.COMPARE_CHART)
