"""Advice on a run, and the results of advice that was applied."""

from typing import NamedTuple

from dashboard.data import predictions
from dashboard.data.changes import Change, requests_from, seen_to_change
from dashboard.data.runs import Look
from harness.analysis.advice import Foreseen, Suggestion, suggest
from harness.config import change
from harness.errors import LogError, SettingError
from harness.store.reader import LogReader
from harness.supervisor.advising import read_known

# The source of requests that apply advice.
SOURCE = "advice"
_SHOWN = 3


class Advised(NamedTuple):
    """Suggestions, the largest gain first, and the latest requests that applied one, the newest first."""

    suggestions: tuple[Suggestion, ...]
    requests: tuple[Change, ...]
    looked_at: int
    """Number of steady-state steps that the advice is based on."""


def read(seen: Look) -> Advised:
    """Read the current advice; empty if the log cannot be read, which the page reports elsewhere."""
    requests = tuple(requests_from(seen, SOURCE, _SHOWN))
    try:
        with LogReader(seen.folder.log) as reader:
            known = read_known(
                reader, seen.device, seen.commands, lambda at: seen_to_change(seen, at), _foreseen(seen)
            )
    except LogError:
        known = None
    if known is None:
        return Advised((), requests, 0)
    return Advised(tuple(suggest(known)), requests, len(known.settled))


def _foreseen(seen: Look) -> Foreseen | None:
    """Return the cached prediction of the peak with twice the batch size, if there is one."""
    if seen.settings is None or seen.device is None:
        return None
    try:
        doubled = change(seen.settings, {"batch_size": 2 * seen.settings.batch_size})
    except SettingError:
        return None
    found = predictions.known(doubled, seen.device)
    return None if found is None else Foreseen(doubled.batch_size, found.needed_bytes)
