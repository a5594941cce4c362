"""Advice on a run, and the results of advice that was applied."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from dashboard.data import predictions
from dashboard.data.changes import ChangeEntry, observed_change, requests_from
from dashboard.data.measuring import read_measured
from dashboard.data.runs import RunView
from harness.analysis.advice import PredictedPeak, Suggestion, suggest, with_code_alone
from harness.errors import LogError, SettingError
from harness.settings.spec import change
from harness.store.reader import LogReader
from harness.supervisor.advising import read_evidence
from harness.supervisor.measuring import Measurement, is_of, measured_effect

# The source of requests that apply advice.
SOURCE = "advice"
_MOST_REQUESTS = 3


class AdviceResult(NamedTuple):
    """Suggestions, the largest gain first, and the latest requests that applied one, the newest first."""

    suggestions: tuple[Suggestion, ...]
    requests: tuple[ChangeEntry, ...]
    # Number of steady-state steps that the advice is based on.
    steps: int
    # Measurements, the newest first.
    measured: tuple[Measurement, ...] = ()

    @property
    def outcomes(self) -> list[Measurement]:
        """Measurements of advice whose suggestion is no longer made, such as those that were kept."""
        return [
            one
            for one in self.measured
            if one.plan.source == SOURCE
            and not any(is_of(one, suggestion.change) for suggestion in self.suggestions)
        ]

    def measured_effect(self, change: Mapping[str, Any]) -> Measurement | None:
        """Return the newest measurement of these settings."""
        return measured_effect(self.measured, change)


def read(view: RunView) -> AdviceResult:
    """Read the current advice; empty if the log cannot be read, which the page reports elsewhere."""
    requests = tuple(requests_from(view, SOURCE, _MOST_REQUESTS))
    measured = tuple(read_measured(view))
    try:
        with LogReader(view.folder.log) as reader:
            evidence = read_evidence(
                reader,
                view.device,
                view.commands,
                lambda at: observed_change(view, at),
                _predicted_peak(view),
                measured,
            )
    except LogError:
        evidence = None
    if evidence is None:
        return AdviceResult((), requests, 0, measured)
    suggestions = suggest(evidence)
    if view.script is not None and view.status.state.is_over:
        suggestions = [with_code_alone(one) for one in suggestions]
    return AdviceResult(tuple(suggestions), requests, len(evidence.settled), measured)


def _predicted_peak(view: RunView) -> PredictedPeak | None:
    """Return the cached prediction of the peak with twice the batch size, if there is one."""
    settings = None if view.settings is None else view.settings.complete
    if settings is None or view.device is None:
        return None
    try:
        doubled = change(settings, {"batch_size": 2 * settings.batch_size})
    except SettingError:
        return None
    prediction = predictions.cached_prediction(doubled, view.device)
    return None if prediction is None else PredictedPeak(doubled.batch_size, prediction.needed_bytes)
