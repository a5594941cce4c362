"""The change of settings that the end of a run follows."""

from collections.abc import Sequence
from itertools import pairwise

from harness import words
from harness.analysis.oom.report import RecentChange
from harness.records.run import SettingsRow
from harness.settings import labels

# Steps after a change within which an error, or the end of the process, is said to follow it: what breaks in
# the loop does so at once, what is done every few steps (a log line, a check of the loss) after some.
CHANGE_WITHIN = 50


def recent_change(history: Sequence[SettingsRow], step: int) -> RecentChange | None:
    """Return the last change of settings before or at `step`, if it is recent."""
    for before, after in reversed(list(pairwise(history))):
        # Values that only became known are no change.
        if after.is_change and 0 <= step - after.step <= CHANGE_WITHIN:
            # Without a command the script has opened another loader.
            describe = labels.sentence_on_values if after.command_id is None else labels.sentence
            message = describe(before.values, after.changes)
            return RecentChange(after.step, step - after.step, message, after.command_id)
    return None


def sentence_on_end(history: Sequence[SettingsRow], last_step: int) -> str:
    """Return a sentence on the live change that the end of a process after `last_step` follows, where nothing
    says why it ended; empty without a recent request."""
    change = recent_change(history, last_step + 1)
    if change is None or change.command_id is None:
        return ""
    after = (
        words.plural(change.steps_ago, "step") + " after" if change.steps_ago else "in the first step after"
    )
    what = change.message.rstrip(".")
    return f"It ended {after} a live change, which may be the cause: {what}, before step {change.step:,}."
