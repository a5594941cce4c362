"""Advice on a run, and the results of advice that was applied."""

from typing import NamedTuple

from dashboard.data import predictions
from dashboard.data.changes import ChangeEntry, observed_change, requests_from
from dashboard.data.runs import RunView
from harness.analysis.advice import PredictedPeak, Suggestion, suggest, with_code_alone
from harness.errors import LogError, SettingError
from harness.settings.spec import change
from harness.store.reader import LogReader
from harness.supervisor.advising import read_evidence

# The source of requests that apply advice.
SOURCE = "advice"
_SHOWN = 3


class AdviceResult(NamedTuple):
    """Suggestions, the largest gain first, and the latest requests that applied one, the newest first."""

    suggestions: tuple[Suggestion, ...]
    requests: tuple[ChangeEntry, ...]
    # Number of steady-state steps that the advice is based on.
    steps: int


def read(view: RunView) -> AdviceResult:
    """Read the current advice; empty if the log cannot be read, which the page reports elsewhere."""
    requests = tuple(requests_from(view, SOURCE, _SHOWN))
    try:
        with LogReader(view.folder.log) as reader:
            evidence = read_evidence(
                reader, view.device, view.commands, lambda at: observed_change(view, at), _foreseen(view)
            )
    except LogError:
        evidence = None
    if evidence is None:
        return AdviceResult((), requests, 0)
    suggestions = suggest(evidence)
    if view.script is not None and view.status.state.is_over:
        suggestions = [with_code_alone(one) for one in suggestions]
    return AdviceResult(tuple(suggestions), requests, len(evidence.settled))


def _foreseen(view: RunView) -> PredictedPeak | None:
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
