"""The measurements of a run, with their effects so far."""

from typing import NamedTuple

import streamlit as st

from dashboard.data.runs import RunView
from harness.errors import LogError
from harness.store.reader import LogReader
from harness.supervisor.measuring import Measurement, read_measurement

# The newest measurements that a page shows.
_MOST = 12


class _Cached(NamedTuple):
    """A measurement, and the state of its rows and its run that it was computed from."""

    stamp: tuple[int, bool, bool, bool]
    measurement: Measurement


@st.cache_resource(show_spinner=False)
def _computed() -> dict[tuple[str, int], _Cached]:
    """Return the cache of measurements by run and number."""
    return {}


def read_measured(view: RunView) -> list[Measurement]:
    """Return the newest measurements, the newest first; empty if the log cannot be read. The effect is
    computed once per finished block."""
    is_over = view.status.state.is_over
    measurements = []
    try:
        with LogReader(view.folder.log) as reader:
            for plan in reversed(reader.measurements.plans()[-_MOST:]):
                is_kept = any(row.command_id == plan.keep_command_id for row in view.history)
                has_ended = reader.measurements.end(plan.number) is not None
                key = (view.folder.run_id, plan.number)
                stamp = (reader.measurements.pairs(plan.number), has_ended, is_kept, is_over)
                cached = _computed().get(key)
                if cached is None or cached.stamp != stamp:
                    measurement = read_measurement(reader, plan.number, is_over)
                    if measurement is None:
                        continue
                    cached = _computed()[key] = _Cached(stamp, measurement)
                measurements.append(cached.measurement)
    except LogError:
        return measurements
    return measurements
