"""What a piece of advice is made of: what a rule declares, what it finds, and what a person is told."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from harness import words
from harness.analysis.advice.known import Known


class Gain(NamedTuple):
    """What can be won. `share` is the largest share of the time a sample takes that can be won; None: no
    bound on the time follows from the evidence."""

    share: float | None
    sentence: str


class Option(NamedTuple):
    """A change of settings that would help, and what it can win. Values are as in JSON; the first setting is
    the one that matters."""

    change: Mapping[str, Any]
    gain: Gain


class Finding(NamedTuple):
    """What a rule found in the steps it looked at."""

    gain: Gain
    """What can be won at all."""
    evidence: str
    """One sentence, with the numbers."""
    details: Sequence[tuple[str, str]]
    """Every number the sentence rests on: its name and its value in words."""
    why: str
    options: Sequence[Option] = ()
    """Changes that would help, the best first."""
    by_hand: str = ""
    """What a person can do beside or without a change of settings."""


class Suggestion(NamedTuple):
    """One piece of advice. `change` is what to set, empty when there is no setting for it (any more)."""

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


class Rule(NamedTuple):
    """A rule, as the docs tell it; `find` gives None without evidence."""

    key: str
    title: str
    threshold: str
    source: str
    """Where the threshold comes from."""
    evidence: str
    """What it looks at."""
    change: str
    """The settings it may propose, in words."""
    find: Callable[[Known], Finding | None]


def at_most(share: float) -> Gain:
    """The bound that a share of the time sets: a sample that takes 1 - s of its time is 1 / (1 - s) times as
    fast."""
    share = min(max(share, 0.0), 0.99)
    faster = words.figure(1 / (1 - share), 3)
    return Gain(share, f"at most {words.percent(100 * share)} less time a sample ({faster} times as fast)")


def pct(share: float) -> str:
    """A share of 1 as a percentage."""
    return words.percent(100 * share)
