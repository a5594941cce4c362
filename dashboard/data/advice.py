"""Advice on a run, and what became of the advice that a person applied."""

from typing import NamedTuple

from dashboard.data import predictions
from dashboard.data.changes import Change, requests_from, seen_to_change
from dashboard.data.runs import Look
from harness.analysis.advice import Foreseen, Suggestion, suggest
from harness.config import change
from harness.errors import LogError, SettingError
from harness.store.reader import LogReader
from harness.supervisor.advising import read_known

SOURCE = "advice"
"""Marks the requests that were made by applying advice."""
_SHOWN = 3


class Advised(NamedTuple):
    """What to do next, the largest gain first; and the newest requests made from here, newest first."""

    suggestions: tuple[Suggestion, ...]
    requests: tuple[Change, ...]
    looked_at: int
    """Settled steps that the advice rests on."""


def read(seen: Look) -> Advised:
    """What can be advised now; nothing where the log cannot be read, which the page says elsewhere."""
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
    """The predicted peak with twice the batch, where such a prediction was made before."""
    if seen.settings is None or seen.device is None:
        return None
    try:
        doubled = change(seen.settings, {"batch_size": 2 * seen.settings.batch_size})
    except SettingError:
        return None
    found = predictions.known(doubled, seen.device)
    return None if found is None else Foreseen(doubled.batch_size, found.needed_bytes)
