"""Step times of a run, for the ranges of steps to choose from."""

from collections.abc import Sequence
from typing import NamedTuple

from dashboard.data.runs import RunView
from harness import words
from harness.analysis.timing.verdict import Verdict, verdict
from harness.errors import LogError
from harness.settings.spec import change_title
from harness.store.folder import RunFolder
from harness.store.reader import LogReader
from harness.supervisor.timing import RunTiming, read_timing

LAST_1K, LAST_5K, ALL = "last 1,000 steps", "last 5,000 steps", "all steps"
_BACK = {LAST_1K: 1_000, LAST_5K: 5_000}
_VERSION = "settings "


class RangeTiming(NamedTuple):
    """The timing of one range of steps and its bottleneck."""

    run: RunTiming
    verdict: Verdict


def versions(view: RunView) -> list[str]:
    """Return the names of the ranges between changes of settings, in order. Settings that were replaced
    before their first step, such as while a script declared its own, have no range."""
    next_steps = [row.step for row in view.history[1:]]
    with_steps = [row for row, end in zip(view.history, next_steps, strict=False) if row.step < end]
    return [_VERSION + str(row.version) for row in (*with_steps, *view.history[-1:])]


def ranges(view: RunView) -> list[str]:
    """Return the names of all ranges, the last steps first."""
    between = versions(view)
    return [LAST_1K, LAST_5K, ALL, *(between if len(between) > 1 else ())]


def range_words(view: RunView, name: str) -> str:
    """Return the label of a range: "settings 2: AMP bf16, from step 6,937"."""
    row = next((row for row in view.history if _VERSION + str(row.version) == name), None)
    if row is None:
        return name
    title = change_title(row.changes) or "as started"
    return f"{name}: {title}, from step {words.count(row.step)}"


def stamp(folder: RunFolder) -> tuple[int, ...]:
    """Return a token that changes with anything new in the log; empty without a log."""
    try:
        with LogReader(folder.log) as reader:
            return reader.stamp()
    except LogError:
        return ()


def settings_stamp(folder: RunFolder) -> tuple[int, ...]:
    """Return a token that changes with the settings in effect and with a new profile; empty without a log."""
    try:
        with LogReader(folder.log) as reader:
            return (reader.stamp()[-2], *reader.profiles.stamp())
    except LogError:
        return ()


def read(view: RunView, name: str) -> RangeTiming | None:
    """Read the step times of a range; None before the first step. Raises LogError."""
    with LogReader(view.folder.log) as reader:
        extent = reader.extent()
        if extent.first is None or extent.last is None:
            return None
        history = reader.settings_history()
        first, last = extent.first, extent.last
        if name in _BACK:
            first = max(first, last - _BACK[name] + 1)
        elif name != ALL:
            first, last = _between([(row.version, row.step) for row in history], name, first, last)
        events = [event for _, event in reader.events()]
        run = read_timing(reader, first, last, view.device, history, events)
    return RangeTiming(run, verdict(run.timing, run.is_asynchronous))


def _between(starts: Sequence[tuple[int, int]], name: str, first: int, last: int) -> tuple[int, int]:
    """Return the steps with one version of the settings; the whole run if that version is unknown."""
    for at, (version, step) in enumerate(starts):
        if _VERSION + str(version) == name:
            end = starts[at + 1][1] - 1 if at + 1 < len(starts) else last
            return max(first, step), min(last, end)
    return first, last
