"""The runs of a comparison, read once per state of their logs."""

from pathlib import Path
from typing import NamedTuple

import streamlit as st

from dashboard.charts.compare import Compared, compared
from dashboard.data.runs import find, home, supervisor
from harness.errors import LogError
from harness.store.folder import RunFolder
from harness.store.reader import LogReader
from harness.supervisor.comparing import read_curves, read_facts


def choices() -> dict[str, str]:
    """Return the names of all runs by their ids, the newest first. Raises HomeError."""
    return {folder.run_id: folder.request().name for folder in home().runs()}


class LogState(NamedTuple):
    """A run's folder, and the stamp of its log."""

    folder: str
    stamp: tuple[int, ...]


def read(run_id: str) -> Compared:
    """Read a run. Raises UnknownRunError or LogError."""
    folder = find(run_id)
    try:
        with LogReader(folder.log) as reader:
            stamp = reader.stamp()
    except LogError:
        stamp = ()
    return _read(LogState(str(folder.path), stamp))


@st.cache_resource(show_spinner=False, max_entries=32)
def _read(log: LogState) -> Compared:
    run = RunFolder(Path(log.folder))
    facts = read_facts(run, supervisor().summary(run))
    series = read_curves(run)
    if series is None:
        return compared(facts, (), 1, ())
    return compared(facts, series.columns, series.bucket_size, series.rows, series.unobserved)
