"""Curves of several runs on one axis, and the distributions of their step times in common bins."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_BINS = 60
# Steps beyond this percentile of the slowest run share the last bin: a few would flatten the rest.
_CUT_PCT = 99.0
_COUNTED = ("bucket", "rows", "samples_sum")


class CurveAxis(StrEnum):
    """The axis that curves are aligned by."""

    STEP = "step"
    TIME = "time"
    SAMPLES = "samples"


class StepTimeBins(NamedTuple):
    """The share of each run's steady-state steps per bin; the bins are common to all runs."""

    edges_ns: Floats
    shares: Sequence[Floats]
    # For each run, the share of its steps beyond the last edge, which the last bin includes.
    beyond: Sequence[float]


def positions(axis: CurveAxis, buckets: Mapping[str, Sequence[float]]) -> Floats:
    """Return the position of each bucket on `axis`: the step, the seconds since the beginning of the first
    bucket, pauses included, or the samples trained on since then.

    `buckets` are the columns `bucket`, `rows`, `t_ns_first`, `t_ns_last` and `samples_sum` of a
    `harness.store.series.StepSeries`. Steps without a row count as many samples as their neighbors; NaN on
    that axis where the samples of no step are known.
    """
    first, rows, samples = (np.asarray(buckets[name], dtype=np.float64) for name in _COUNTED)
    if not len(first):
        return np.empty(0)
    if axis is CurveAxis.STEP:
        return first + (rows - 1) / 2
    if axis is CurveAxis.TIME:
        begin, end = (np.asarray(buckets[name], dtype=np.float64) for name in ("t_ns_first", "t_ns_last"))
        return np.asarray(((begin + end) / 2 - begin[0]) / 1e9)
    if not samples.any():
        return np.full(len(first), np.nan)
    per_step = samples / np.maximum(rows, 1)
    # The first bucket may begin before the first step.
    spanned = np.concatenate((rows[:1], np.diff(first)[1:], rows[-1:]))[-len(rows) :]
    before = np.concatenate(([0.0], np.cumsum(per_step * spanned)[:-1]))
    return before + per_step * rows / 2


def sample_steps(buckets: Mapping[str, Sequence[float]]) -> tuple[Floats, Floats]:
    """Return steps in order, from before the first to the last, and the samples trained on up to each.

    `buckets` are those of `positions`, at least one.
    """
    steps, samples = positions(CurveAxis.STEP, buckets), positions(CurveAxis.SAMPLES, buckets)
    # The middles of the buckets, and both ends.
    last_half = float(buckets["rows"][-1]) / 2
    per_step = float(buckets["samples_sum"][-1]) / (2 * last_half)
    first = float(steps[0]) - (float(buckets["rows"][0]) + 1) / 2
    return (
        np.concatenate(([first], steps, [float(steps[-1]) - 0.5 + last_half])),
        np.concatenate(([0.0], samples, [float(samples[-1]) + per_step * last_half])),
    )


def align(places: Floats, steps: Floats, at: Floats) -> Floats:
    """Return the positions of the steps `at`, interpolated between `places`, which are those of `steps`."""
    return np.interp(at, steps, places) if len(steps) else np.empty(0)


def step_time_bins(runs_ns: Sequence[Sequence[int]]) -> StepTimeBins | None:
    """Return the distributions of the step times of several runs; None if none has a step."""
    arrays = [np.asarray(times, dtype=np.float64) for times in runs_ns]
    measured = [times for times in arrays if len(times)]
    if not measured:
        return None
    low = min(float(times.min()) for times in measured)
    high = max(float(np.percentile(times, _CUT_PCT)) for times in measured)
    high = max(high, low * 1.001 + 1.0)
    edges = np.linspace(low, high, _BINS + 1)
    shares, beyond = [], []
    for times in arrays:
        counts, _ = np.histogram(np.minimum(times, high), bins=edges)
        shares.append(counts / max(1, len(times)))
        beyond.append(float((times > high).mean()) if len(times) else 0.0)
    return StepTimeBins(edges, shares, beyond)
