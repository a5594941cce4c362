"""Types of advice: the rule, its diagnosis of a run, and the suggestion shown to a person."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from harness import words
from harness.analysis.advice.evidence import RunEvidence


class Gain(NamedTuple):
    """Expected gain. `share` is the largest share of the time per sample that can be saved; None where the
    evidence gives no bound."""

    share: float | None
    sentence: str


class Option(NamedTuple):
    """A change of settings with its expected gain. Values are as in JSON; the first setting is the main
    one."""

    change: Mapping[str, Any]
    gain: Gain


class Diagnosis(NamedTuple):
    """Result of a rule that applies to a run."""

    # Gain without regard to single options.
    gain: Gain
    # One sentence, with the numbers.
    evidence: str
    # Name and text of every number behind the sentence.
    details: Sequence[tuple[str, str]]
    why: str
    # Changes that would help, the best first.
    options: Sequence[Option] = ()
    # Steps outside of the settings.
    by_hand: str = ""
    # Lines of code for these steps.
    code: str = ""
    # In place of the rule's title, where that does not fit this run.
    title: str = ""


class Suggestion(NamedTuple):
    """One piece of advice. `change` holds the settings to change, and is empty where none is left."""

    rule: str
    title: str
    gain: Gain
    evidence: str
    details: tuple[tuple[str, str], ...]
    first_step: int
    last_step: int
    why: str
    change: Mapping[str, Any]
    by_hand: str
    # Lines of code to write by hand, where the run does not have the setting.
    code: str = ""


class Rule(NamedTuple):
    """A rule, as the documentation lists it; `find` returns None without evidence."""

    key: str
    title: str
    threshold: str
    # Source of the threshold.
    source: str
    # Measurements used.
    evidence: str
    # Settings the rule may propose, in words.
    change: str
    find: Callable[[RunEvidence], Diagnosis | None]


def at_most(share: float) -> Gain:
    """The gain bounded by a share of the time: a sample that takes 1 - s of its time is 1 / (1 - s) times as
    fast."""
    share = min(max(share, 0.0), 0.99)
    faster = words.figure(1 / (1 - share), 3)
    return Gain(share, f"at most {words.percent(100 * share)} less time per sample ({faster} times as fast)")


def pct(share: float) -> str:
    """Text of a share of 1 in percent."""
    return words.percent(100 * share)
