"""The live changes of settings that the error which ends a run may come from.

A run fails once, and changes are few: an error so soon after a change rarely has another reason. That it
follows a change is all that is said, unless the error's text names what was changed.
"""

import re
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from harness import words
from harness.analysis.recent_change import CHANGE_WITHIN
from harness.records.run import AmpMode
from harness.settings.declaration import Group
from harness.settings.spec import SPECS, arguments_of, change_title

_MOST_NAMED = 3
_MOST_CHANGES = 100
# Smaller numbers in an error are mostly those of dimensions.
_LEAST_TELLING = 5
# Numbers that are no part of a name (float32), of a decimal number, or of a place in code.
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w]|\.\d)")
_CODE_LINE = re.compile(r"\bline \d+")
_DTYPES = {
    AmpMode.BF16: (re.compile(r"\bBFloat16\b|\bbfloat16\b"), "bfloat16"),
    AmpMode.FP16: (re.compile(r"\bHalf\b|\bfloat16\b"), "float16"),
}
_BATCH_SIZE = re.compile(r"\bbatch[ _-]?size", re.IGNORECASE)
# Of torch's OneCycleLR.
_SCHEDULE = re.compile(r"Tried to step \d+ times\. The specified number of total steps is \d+")
_CLUE_END = "the change is the likely cause."


class AppliedChange(NamedTuple):
    """A change before `step`, with the values `before` and `after` it as JSON values, and its description.

    What breaks with it does so within `shows_within` steps. `is_waiting`: it was requested before `step`, and
    is not in effect yet. `is_undone`: the values are those before again.
    """

    step: int
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    text: str
    command_id: str | None
    shows_within: int = CHANGE_WITHIN
    is_waiting: bool = False
    is_undone: bool = False

    @property
    def title(self) -> str:
        """The change and its step in a phrase."""
        before = f"before step {words.count(self.step)}"
        when = f"requested {before} and not in effect yet" if self.is_waiting else before
        return f"{self.text.rstrip('.')}, {when}"


class RecentChanges:
    """The changes so far that a person requested, and those that undid one of them.

    Attributes:
        names_flags: whether the run was started with flags for its settings; else it is a script's.
    """

    def __init__(self) -> None:
        self._changes: list[AppliedChange] = []
        # The values with which the run began.
        self._first: dict[str, Any] = {}
        self.names_flags = True

    def __bool__(self) -> bool:
        return bool(self._changes)

    def add(self, change: AppliedChange) -> None:
        """Take notice of a change. One without a command is what the script or the run did by itself: it
        counts where it undoes a request."""
        changed = {name for one in self._changes for name in one.after}
        if change.command_id is None and changed.isdisjoint(change.after):
            return
        for name, value in change.before.items():
            self._first.setdefault(name, value)
        if all(name in SPECS and SPECS[name].group is Group.RUN for name in change.after):
            return  # Such as another number of steps.
        self._changes = [one for one in self._changes if not _is_same(one, change)]
        self._changes = [*self._changes[1 - _MOST_CHANGES :], change]

    def took_effect(self, step: int) -> None:
        """The changes that were waiting took effect before `step`."""
        self._changes = [
            one._replace(step=step, is_waiting=False) if one.is_waiting else one for one in self._changes
        ]

    def undone(self, command_id: str) -> None:
        """The values before the change that `command_id` requested are in effect again."""
        self._changes = [
            one._replace(is_undone=True) if one.command_id == command_id else one for one in self._changes
        ]

    def sentences(self, error: str, last_step: int, not_finite_since: int | None = None) -> str:
        """Return sentences on the changes that `error` follows, which was raised after `last_step`; empty
        without any. The loss is not finite since the step `not_finite_since`; None: it is, or unknown."""
        followed = [one for one in self._changes if _is_followed(one, error, last_step, not_finite_since)]
        if not followed:
            return ""
        since = last_step + 1 - followed[-1].step
        when = "in the first step" if since <= 0 else words.plural(since, "step")
        which = "a live change" if len(followed) == 1 else f"the last of {len(followed)} live changes"
        named = "; ".join(one.title for one in followed[-_MOST_NAMED:])
        parts = [f"It failed {when} after {which}: {named}."]
        if not_finite_since is not None and not_finite_since >= followed[0].step:
            parts.append(f"The loss has not been finite since step {words.count(not_finite_since)}.")
        may = "The change" if len(followed) == 1 else "One of them"
        clues = [clue for one in followed if (clue := _clue(one, error)) is not None]
        parts.append(f"{clues[-1]}: {_CLUE_END}" if clues else f"{may} may be the cause.")
        return " ".join([*parts, *self._ways_back(followed)])

    def _ways_back(self, followed: list[AppliedChange]) -> list[str]:
        """Return sentences on how to have the values before the changes."""
        before: dict[str, Any] = {}
        now: dict[str, Any] = {}
        for one in followed:
            if not one.is_undone:
                before = before | {name: old for name, old in one.before.items() if name not in before}
                now |= one.after
        changed = {name: value for name, value in before.items() if now[name] != value}
        if not changed:
            return []
        if self.names_flags:
            flags = shlex.join(arguments_of(changed))
            return [f"`stepscope run … {flags}` begins with the {_noun(changed)} before."]
        first = {name: self._first[name] for name in changed}
        parts = [f"When it is run again, the script begins with its own values ({change_title(first)})"]
        if other := {name: value for name, value in changed.items() if value != first[name]}:
            values = " ".join(f"{name}={_shell_value(value)}" for name, value in other.items())
            parts.append(f"`stepscope set latest {values}` sets the {_noun(other)} before")
        return [f"{'; '.join(parts)}."]


def _is_same(change: AppliedChange, other: AppliedChange) -> bool:
    """Return whether both are those of one measurement, which switches to and fro."""
    is_of_one = change.command_id is not None and change.command_id == other.command_id
    return is_of_one and change.after == other.after


def _is_followed(
    change: AppliedChange, error: str, last_step: int, not_finite_since: int | None = None
) -> bool:
    shown_at = last_step + 1
    if not_finite_since is not None and not_finite_since >= change.step:
        shown_at = not_finite_since
    return shown_at - change.step <= change.shows_within or _ends_schedule(change, error)


def _clue(change: AppliedChange, error: str) -> str | None:
    """Return what in the text of an error points to `change`; None: nothing does."""
    if _ends_schedule(change, error):
        return "With smaller batches, an epoch has more steps than the script's schedule"
    old, new = change.before.get("batch_size"), change.after.get("batch_size")
    if isinstance(old, int) and isinstance(new, int) and not change.is_waiting:
        if new > old and error.startswith("StopIteration"):
            return "With larger batches, a pass over the loader has fewer"
        numbers = {int(number) for number in _NUMBER.findall(_CODE_LINE.sub("", error))}
        # Tensors may have several rows per sample, such as tokens or two views.
        times = [size // old for size in numbers if size % old == 0 and size // old * new in numbers]
        if (factor := min(filter(None, times), default=0)) and factor * max(old, new) >= _LEAST_TELLING:
            multiple = f"{factor * old:,} and {factor * new:,}, {factor:,} times "
            return f"The error names {multiple if factor > 1 else ''}both batch sizes"
        if old in numbers and old >= _LEAST_TELLING:
            return f"The error names {old:,}, the earlier batch size"
        if _BATCH_SIZE.search(error):
            return "The error is about a batch size"
    for mode, (pattern, name) in _DTYPES.items():
        if change.after.get("amp") == mode and pattern.search(error):
            return f"The error names {name}, the data type of that mode"
    return None


def _ends_schedule(change: AppliedChange, error: str) -> bool:
    old, new = change.before.get("batch_size"), change.after.get("batch_size")
    is_smaller = isinstance(old, int) and isinstance(new, int) and new < old
    return is_smaller and _SCHEDULE.search(error) is not None


def _noun(values: Mapping[str, Any]) -> str:
    return "value" if len(values) == 1 else "values"


def _shell_value(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "none"
    return shlex.quote(str(value))
