"""The runs of a comparison, read once per state of their logs."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import streamlit as st

from dashboard.charts.compare import Compared, compared
from dashboard.data.runs import find, home, supervisor
from dashboard.data.scalars import ScalarSeries, read_all
from harness.errors import LogError
from harness.store.folder import RunFolder
from harness.store.reader import LogReader
from harness.supervisor.comparing import read_curves, read_facts
from harness.supervisor.equal_losses import with_equal_losses


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


def add_equal_losses(runs: Sequence[Compared]) -> list[Compared]:
    """Return the runs with their losses after the number of samples that all of them trained on."""
    facts = with_equal_losses([find(run.facts.run_id) for run in runs], [run.facts for run in runs])
    return [run._replace(facts=of_run) for run, of_run in zip(runs, facts, strict=True)]


def scalar_names(run_ids: Sequence[str]) -> list[str]:
    """Return the scalars of the runs, those of the most runs first."""
    times: Counter[str] = Counter()
    for run_id in run_ids:
        try:
            with LogReader(find(run_id).log) as reader:
                times.update(reader.script.scalar_names())
        except LogError:
            continue
    return [name for name, _ in times.most_common()]


def read_scalars_of(run_id: str, names: Sequence[str]) -> list[ScalarSeries]:
    """Read those scalars that the run has; empty if its log cannot be read."""
    try:
        with LogReader(find(run_id).log) as reader:
            own = set(reader.script.scalar_names())
            return read_all(reader.script, [name for name in names if name in own])
    except LogError:
        return []


@st.cache_resource(show_spinner=False, max_entries=32)
def _read(log: LogState) -> Compared:
    run = RunFolder(Path(log.folder))
    facts = read_facts(run, supervisor().summary(run))
    series = read_curves(run)
    if series is None:
        return compared(facts, (), 1, ())
    return compared(facts, series.columns, series.bucket_size, series.rows, series.unobserved)
