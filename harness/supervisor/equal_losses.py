"""Reads the losses of several runs after the same number of samples."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from harness.analysis.compare.curves import Floats, sample_steps
from harness.analysis.compare.facts import RunFacts
from harness.errors import LogError
from harness.store.folder import RunFolder
from harness.store.reader import LogReader

# The loss is a mean over this share of the samples, the last ones before the common number: losses of single
# steps vary too much, and the same number of steps would be more samples for a larger batch.
_WINDOW = 0.05
_BUCKETS = 480


class _Progress(NamedTuple):
    """The steps of a run, and the samples trained on up to each."""

    steps: Floats
    samples: Floats


def with_equal_losses(folders: Sequence[RunFolder], runs: Sequence[RunFacts]) -> list[RunFacts]:
    """Return `runs`, read from `folders`, with their losses after the number of samples that all of them
    trained on; unchanged where fewer than two runs have samples."""
    progress = [_progress(folder) for folder in folders]
    totals = [float(one.samples[-1]) for one in progress if one is not None]
    if len(totals) < 2:
        return list(runs)
    samples = min(totals)
    return [
        run if one is None else run._replace(equal_samples=samples, equal_loss=_loss(folder, one, samples))
        for folder, run, one in zip(folders, runs, progress, strict=True)
    ]


def _progress(folder: RunFolder) -> _Progress | None:
    try:
        with LogReader(folder.log) as reader:
            extent = reader.extent()
            if extent.first is None or extent.last is None:
                return None
            series = reader.series(extent.first, extent.last, _BUCKETS, ("loss",))
    except LogError:  # Its facts say so.
        return None
    progress = _Progress(*sample_steps({name: series.column(name) for name in series.columns}))
    return progress if progress.samples[-1] > 0 else None


def _loss(folder: RunFolder, progress: _Progress, samples: float) -> float | None:
    """Return the mean loss of the last samples up to `samples`; NaN where one is not finite."""
    window = ((1 - _WINDOW) * samples, samples)
    first, last = (float(step) for step in np.interp(window, progress.samples, progress.steps))
    try:
        with LogReader(folder.log) as reader:
            series = reader.series(min(math.floor(first) + 1, round(last)), round(last), _BUCKETS, ("loss",))
    except LogError:
        return None
    if any(series.column("non_finite_sum")):
        return math.nan
    losses = sum(series.column("loss_count"))
    return sum(total or 0.0 for total in series.column("loss_sum")) / losses if losses else None
