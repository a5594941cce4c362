"""The actions on the runs that are selected on the Runs page: export, label, delete."""

import shlex
from collections.abc import Sequence

import streamlit as st

from dashboard import state
from dashboard.data import runs as run_data
from dashboard.download_links import tables_link
from harness import words
from harness.errors import StepscopeError
from harness.export import ExportFormat
from harness.records.entry import RunEntry
from harness.records.run import RunState
from harness.store.labels import LONGEST_NOTE, MOST_TAGS, Labels

_MOST_PROBLEMS = 3
# Ids in one command; more are hard to read.
_MOST_NAMED = 50
# Of one download: 10⁶ steps as CSV take about 20 s and 74 MiB.
_MOST_STEPS, _MOST_RUNS = 1_000_000, 200
_FORMATS = {
    ExportFormat.CSV: "CSV",
    ExportFormat.JSONL: "JSON lines",
    ExportFormat.PARQUET: "Parquet",
    ExportFormat.TENSORBOARD: "TensorBoard",
}


def delete_button(chosen: Sequence[RunEntry]) -> None:
    """Draw the deletion of runs, which asks first. A run that is still active is kept, with the reason."""
    what = chosen[0].name if len(chosen) == 1 else words.plural(len(chosen), "run")
    logs = "Its log is" if len(chosen) == 1 else "Their logs are"
    with st.popover("Delete", icon=":material/delete:", key="delete_run"):
        st.text(f"Delete {what}? {logs} removed permanently.")
        if st.button("Delete permanently", key="delete_run_confirmed", type="primary"):
            with st.spinner("Deleting…"):
                _report(run_data.delete_runs([run.run_id for run in chosen]))
            st.rerun()


def export_button(chosen: Sequence[RunEntry]) -> None:
    """Draw the links that download all tables of runs, or the shell command for more than a browser should
    wait for. A file is made when it is requested."""
    with st.popover("Export", icon=":material/download:", key="export"):
        readable = [run for run in chosen if run.problem is None]
        if len(readable) < len(chosen):
            st.text(f"{words.plural(len(chosen) - len(readable), 'log')} cannot be read.")
        if not readable:
            return
        ids = [run.run_id for run in readable]
        if sum(run.steps or 0 for run in readable) > _MOST_STEPS or len(readable) > _MOST_RUNS:
            st.text(
                f"More than {words.count(_MOST_RUNS)} runs or {words.count(_MOST_STEPS)} steps are too much "
                "for a browser. In a shell, type:"
            )
            _command(ids)
            return
        st.text(
            "All tables of the run, as a zip file." if len(ids) == 1 else "A folder per run, as a zip file."
        )
        for form, name in _FORMATS.items():
            tables_link(name, ids, form)
        if any(not RunState(run.state).is_over for run in readable):
            st.caption("Of live runs, the file has the steps up to now.")


def _command(ids: Sequence[str]) -> None:
    some = ids[:_MOST_NAMED]
    st.code(shlex.join(["stepscope", "export", *some, "-o", "exported"]), language="bash", wrap_lines=True)
    if len(ids) > len(some):
        st.caption(f"The first {_MOST_NAMED} of {words.count(len(ids))} runs.")


def labels_button(run: RunEntry) -> None:
    """Draw the tags and the note of a run, to change them.

    While the popover is open, they are those at its opening, so that no text is lost. Only what a person
    changed is saved: labels from a shell or another tab stay.
    """
    popover = st.popover("Labels", icon=":material/label:", key="labels", on_change="rerun")
    before, number = state.labels_form(run.run_id, Labels(run.tags, run.note), is_open=bool(popover.open))
    with popover:
        tags = st.multiselect(
            "Tags",
            list(before.tags),
            default=list(before.tags),
            key=f"tags_{run.run_id}_{number}",
            accept_new_options=True,
            max_selections=MOST_TAGS,
            placeholder="Type a tag, press Enter",
            width=320,
        )
        key = f"note_{run.run_id}_{number}"
        note = st.text_area("Note", before.note, key=key, max_chars=LONGEST_NOTE)
        if st.button("Save", key="save_labels", type="primary"):
            try:
                run_data.set_labels(run.run_id, before, Labels(tuple(tags), note))
            except StepscopeError as error:
                state.set_problem(str(error))
            else:
                state.end_labels_form()
            st.rerun()


def tags_button(chosen: Sequence[RunEntry]) -> None:
    """Draw the addition and removal of a tag of several runs."""
    with st.popover("Tag", icon=":material/label:", key="labels"):
        tag = st.text_input("Tag", key="bulk_tag", placeholder="Type a tag").strip()
        with st.container(horizontal=True):
            adds = st.button("Add", key="add_tag", type="primary", disabled=not tag)
            removes = st.button("Remove", key="remove_tag", disabled=not tag)
        if adds or removes:
            run_ids = [run.run_id for run in chosen]
            _report(run_data.tag_runs(run_ids, [tag] if adds else [], [tag] if removes else []))
            st.rerun()


def _report(problems: Sequence[str]) -> None:
    """Store the reasons why runs were left out, to show them once."""
    if problems:
        more = len(problems) - _MOST_PROBLEMS
        rest = [f"{words.plural(more, 'more run')} likewise."] if more > 0 else []
        state.set_problem(" ".join([*problems[:_MOST_PROBLEMS], *rest]))
