"""Error of predictions on this machine: stored predictions against the peaks of finished runs. Does not
import torch."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from harness import words
from harness.errors import SettingError, StepscopeError
from harness.predict.answer import Prediction, Target
from harness.predict.cache import RowCache, prediction_cache
from harness.predict.question import Question
from harness.records import json as row_json
from harness.records.run import DeviceFacts, StepRow
from harness.settings.recorded import read_recorded
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.reader import LogReader

_MOST_RUNS = 40
_RECENT_STEPS = 200


class ErrorBand(NamedTuple):
    """Errors of predicted peaks in percent of the measured ones, negative if too low, over `runs` runs."""

    runs: int
    # Of the absolute errors.
    mean_pct: float
    lowest_pct: float
    highest_pct: float

    @property
    def sentence(self) -> str:
        """The band as one sentence."""
        if self.runs == 1:
            text = (
                "In the one finished run on this device for which there is a prediction, the predicted peak "
                f"was off by {self.lowest_pct:+.1f} %, against the peak read as it ran."
            )
        else:
            text = (
                f"Over {words.plural(self.runs, 'finished run')} on this device, predicted peaks were off by "
                f"{self.mean_pct:.1f} % on average, from {self.lowest_pct:+.1f} to "
                f"{self.highest_pct:+.1f} %, against the peaks read as they ran."
            )
        return text.replace(" -", " −")


def error_band(home: Home, target: Target) -> ErrorBand | None:
    """Return the band over the home's newest finished runs on a device like `target` that have a prediction
    of this version on this processor; None without any. Reads up to 40 logs."""
    cache = prediction_cache(home.path)
    errors = [_error_pct(folder, target, cache) for folder in home.runs()[:_MOST_RUNS]]
    measured = [error for error in errors if error is not None]
    if not measured:
        return None
    return ErrorBand(len(measured), statistics.fmean(map(abs, measured)), min(measured), max(measured))


def settled_peak(recent: Sequence[StepRow], version: int) -> int | None:
    """Return the highest peak of the unflagged steps under one version of the settings."""
    peaks = [
        row.peak_allocated_bytes
        for row in recent
        if row.settings_version == version and not row.flags and row.peak_allocated_bytes
    ]
    return max(peaks, default=None)


def _error_pct(folder: RunFolder, target: Target, cache: RowCache[Prediction]) -> float | None:
    """Return the error of one run's prediction; None without a prediction or a measured peak."""
    try:
        with LogReader(folder.log) as reader:
            run, history = reader.run(), reader.settings_history()
            recorded = read_recorded(history[-1].settings) if history else None
            settings = None if recorded is None else recorded.complete
            if run.simulated or run.ended_unix_ns is None or settings is None:
                return None
            own = Target.of(row_json.from_json(DeviceFacts, run.device, ignore_unknown=True))
            if (own.kind, own.name) != (target.kind, target.name):
                return None
            prediction = cache.get(Question.of(settings, own).key)
            measured = settled_peak(reader.last_steps(_RECENT_STEPS), history[-1].version)
    except (StepscopeError, SettingError, ValueError, OSError):
        return None
    if prediction is None or measured is None:
        return None
    return 100 * (prediction.peak_allocated_bytes / measured - 1)
