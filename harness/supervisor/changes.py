"""Reads from a run's log what differs around a change of its settings (`harness.analysis.effect`)."""

from bisect import bisect_right
from collections.abc import Sequence
from statistics import median

from harness.analysis.effect import LENGTHS_S, ObservedChange, missing_time, observe
from harness.analysis.effect.reference import at_equal_speed
from harness.records.run import SettingsRow
from harness.records.step_time import StepTime
from harness.store.reader import LogReader

# Read before a change: what the run does by itself.
HISTORY_S = 180.0
# Steps shorter than this are read one in several, primes apart, so that they do not fall into step with what
# happens every so many steps. Their neighbors are alike and add little.
_APART_NS = 5_000_000
_STRIDES = (1, 3, 7, 13, 29, 61, 127)
_PROBED = 200
# A history of very short steps is cut here.
_MOST_READ = 60_000


def observe_version(
    reader: LogReader, history: Sequence[SettingsRow], at: int, is_over: bool = False
) -> ObservedChange:
    """Compare the steps under version `at` of the settings, not the first, with those under the version
    before. Raises LogError."""
    before_s, after_s = spans_s(reader, history, at)
    is_closed = is_over or at + 1 < len(history)
    missing = missing_time(before_s, after_s, is_closed)
    if missing is not None:
        return ObservedChange(0, 0, 0, 0.0, None, None, None, None, missing)
    row = history[at]
    probed = reader.step_times(row.step, row.step + _PROBED) or reader.step_times(row.step - 1, row.step)
    step_ns = median(step.step_ns for step in probed) if probed else _APART_NS
    stride = _STRIDES[max(0, bisect_right(_STRIDES, _APART_NS / max(1, step_ns)) - 1)]
    reach = min(_MOST_READ * stride, int(HISTORY_S * 1e9 / max(1, step_ns)) + 1)
    last = row.step + min(_MOST_READ * stride, int(2 * LENGTHS_S[-1] * 1e9 / max(1, step_ns)) + _PROBED)
    if at + 1 < len(history):
        last = min(last, history[at + 1].step - 1)
    first = max(0, row.step - reach)
    steps = reader.step_times(first, last, stride)
    at_one_speed = at_equal_speed(reader.reference.steps(first, last))
    return observe(_within(steps, row), row.version, is_closed, _within(at_one_speed, row))


def spans_s(reader: LogReader, history: Sequence[SettingsRow], at: int) -> tuple[float, float]:
    """For how long, in seconds on the run's clock, the settings before version `at` were in effect, and for
    how long that version has been."""
    if at + 1 < len(history):
        end_ns = history[at + 1].t_ns
    else:
        newest = reader.last_steps(1)
        end_ns = newest[-1].t_ns if newest else history[at].t_ns
    return (history[at].t_ns - history[at - 1].t_ns) / 1e9, (end_ns - history[at].t_ns) / 1e9


def _within(steps: Sequence[StepTime], row: SettingsRow) -> Sequence[StepTime]:
    """Of these steps, those up to the last under the version."""
    return [step for step in steps if step.settings_version <= row.version]
