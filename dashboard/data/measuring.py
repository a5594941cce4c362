"""The measurements of a run, with their effects so far."""

import streamlit as st

from dashboard.data.runs import RunView
from harness.errors import LogError
from harness.store.reader import LogReader
from harness.supervisor.measuring import Measurement, read_measurement

# The newest measurements that a page shows.
_MOST = 12


@st.cache_resource(show_spinner=False)
def _finished() -> dict[tuple[str, int, bool], Measurement]:
    """Return the cache of ended measurements by run, number, and whether the change was kept."""
    return {}


def read_measured(view: RunView) -> list[Measurement]:
    """Return the newest measurements, the newest first; empty if the log cannot be read. One that has ended
    is computed once."""
    is_over = view.status.state.is_over
    measurements = []
    try:
        with LogReader(view.folder.log) as reader:
            for plan in reversed(reader.measurements.plans()[-_MOST:]):
                is_kept = any(row.command_id == plan.keep_command_id for row in view.history)
                key = (view.folder.run_id, plan.number, is_kept)
                measurement = _finished().get(key)
                if measurement is None:
                    measurement = read_measurement(reader, plan.number, is_over)
                if measurement is None:
                    continue
                if measurement.end is not None and measurement.is_kept == is_kept:
                    _finished()[key] = measurement
                measurements.append(measurement)
    except LogError:
        return measurements
    return measurements
