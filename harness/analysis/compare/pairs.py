"""The difference of two runs: figures with intervals where there are any, and one sentence.

Each run took place once. An interval is that of the variation within both runs (autocorrelation included, see
`harness.analysis.effect.uncertainty`); how much a repetition of the same run would differ is unknown, and the
sentence says so.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from harness import words
from harness.analysis.compare.facts import FIGURES, NamedFigure, RunFacts
from harness.analysis.effect.observing import LEAST_REACH, PRACTICAL
from harness.analysis.effect.uncertainty import (
    Difference,
    Estimate,
    difference,
    sample_rate,
    step_quantile,
    widening,
)
from harness.analysis.effect.windows import MIN_STEPS, StepWindow
from harness.settings.spec import SPECS, text_of_value

# Student's t of a 95 % interval with the 6 degrees of freedom of
# `harness.analysis.effect.uncertainty.DEGREES`.
_T_95 = 2.447
# Windows of a run's own history, for slower changes than a window shows.
_WINDOWS = 8
_MOST_SETTINGS = 4
_LONGEST_NAME = 60
_LONGEST_SCRIPT = 200


class PairFigure(NamedTuple):
    """One figure of the baseline and of another run; `ratio` is other/baseline, with an interval for step
    time and samples per second. None: not measured, or not defined."""

    name: str
    before: float | None
    after: float | None
    ratio: float | None
    low: float | None
    high: float | None

    @property
    def is_visible(self) -> bool:
        """True if the interval excludes "no difference"."""
        if self.ratio is None or self.low is None or self.high is None:
            return False
        return (self.low > 1 or self.high < 1) and abs(self.ratio - 1) >= PRACTICAL


class RunPair(NamedTuple):
    """The comparison of two runs; `verdict` is one sentence."""

    baseline: str
    other: str
    figures: Sequence[PairFigure]
    verdict: str

    def figure(self, name: str) -> PairFigure:
        """Return a figure by its name."""
        return next(figure for figure in self.figures if figure.name == name)


class SettingDifference(NamedTuple):
    """A setting that differs between runs: its value in each, "n/a" where a run does not have it."""

    name: str
    label: str
    values: tuple[str, ...]


_INTERVALS: dict[str, Callable[[StepWindow], Estimate]] = {
    "step_time": partial(step_quantile, share=0.5),
    "samples_per_s": sample_rate,
}


def compare_pair(baseline: RunFacts, other: RunFacts) -> RunPair:
    """Compare a run with the baseline."""
    figures = [_pair_figure(figure, baseline, other) for figure in FIGURES.values()]
    pair = RunPair(baseline.run_id, other.run_id, figures, "")
    return pair._replace(verdict=_verdict(baseline, other, pair))


def common_figures(runs: Sequence[RunFacts]) -> list[str]:
    """Return the names of the figures, besides the number of steps, that at least two of the runs have."""
    return [
        figure.name
        for figure in FIGURES.values()
        if figure.name not in ("steps", "duration") and sum(figure.read(run) is not None for run in runs) > 1
    ]


def settings_that_differ(runs: Sequence[RunFacts]) -> list[SettingDifference]:
    """Return the settings with different values among the runs: the script with its arguments, then settings
    in the order of their declarations; those that scripts declared come last. A run of a script has only some
    of the declared settings of the catalog: those that it lacks are no difference, while a setting of its own
    is one."""
    own = sorted({name for run in runs for name in run.settings} - set(SPECS))
    rows = []
    scripts = [words.NOT_AVAILABLE if run.script is None else words.printable(run.script) for run in runs]
    if len(set(scripts)) > 1:
        names = (words.clip(script, _LONGEST_SCRIPT) for script in scripts)
        rows.append(SettingDifference("script", "Script", tuple(names)))
    for name in (*SPECS, *own):
        values = [run.settings.get(name, _ABSENT) for run in runs]
        compared = [value for value in values if value is not _ABSENT] if name in SPECS else values
        if all(value == compared[0] for value in compared):
            continue
        label = SPECS[name].label if name in SPECS else name
        rows.append(SettingDifference(name, label, tuple(_setting_text(name, value) for value in values)))
    return rows


_ABSENT = object()


def _setting_text(name: str, value: Any) -> str:
    if value is _ABSENT:
        return words.NOT_AVAILABLE
    text = text_of_value(name, value)
    return text if name in SPECS else words.clip(text, _LONGEST_NAME)


def _pair_figure(figure: NamedFigure, baseline: RunFacts, other: RunFacts) -> PairFigure:
    before, after = figure.read(baseline), figure.read(other)
    ratio = after / before if before and after is not None and math.isfinite(before) else None
    if ratio is None or not math.isfinite(ratio):
        return PairFigure(figure.name, before, after, None, None, None)
    statistic = _INTERVALS.get(figure.name)
    interval = None if statistic is None else _interval(statistic, baseline.steady, other.steady)
    if interval is None:
        return PairFigure(figure.name, before, after, ratio, None, None)
    # The interval is around the statistic's own estimate; the table shows the figure's ratio.
    low, high = min(ratio, math.exp(interval.low)), max(ratio, math.exp(interval.high))
    return PairFigure(figure.name, before, after, ratio, low, high)


def _interval(
    statistic: Callable[[StepWindow], Estimate], before: Sequence[Any], after: Sequence[Any]
) -> Difference | None:
    """Return the difference of the logarithms; None if either run has too few steady-state steps, or, for
    samples per second, a step with an unknown number of samples."""
    windows = StepWindow(before), StepWindow(after)
    if min(len(before), len(after)) < MIN_STEPS:
        return None
    if statistic is sample_rate and not all(window.has_samples for window in windows):
        return None
    history = [
        pair
        for window in windows
        for pair in pairwise(
            [
                statistic(StepWindow(block))
                for block in window.blocks(_WINDOWS)
                if len(block) >= MIN_STEPS // 2
            ]
        )
    ]
    factor = widening(history, _T_95, LEAST_REACH)
    return difference(
        statistic(windows[0]), statistic(windows[1]), _T_95 * factor, LEAST_REACH * factor
    )  # fmt: skip


def _verdict(baseline: RunFacts, other: RunFacts, pair: RunPair) -> str:
    a, b = _quoted(baseline), _quoted(other)
    parts = [
        _speed(a, b, baseline, other, pair),
        *_memory(pair),
        *_loss(baseline, pair),
        _settings(baseline, other),
    ]
    caveat = "each ran once, so another repetition may differ by more than the variation within these runs"
    return "; ".join([*parts, caveat]) + "."


def _quoted(run: RunFacts) -> str:
    return f"'{words.clip(words.printable(run.name), _LONGEST_NAME)}'"


def _speed(a: str, b: str, baseline: RunFacts, other: RunFacts, pair: RunPair) -> str:
    batches = {baseline.samples_per_step, other.samples_per_step}
    is_by_step = len(batches) == 1 or None in batches
    figure = pair.figure("step_time" if is_by_step else "samples_per_s")
    if figure.ratio is None:
        lacking = a if figure.before is None else b
        return f"The speed of {a} and {b} cannot be compared: {lacking} has no steady-state step"
    spec = FIGURES[figure.name]
    figures = f"{spec.label} {spec.text(figure.before)} → {spec.text(figure.after)}"
    if figure.low is None or figure.high is None:
        change = words.relative(figure.ratio - 1)
        return (
            f"{b} has {figures} against {a} ({change}; no interval, {MIN_STEPS} steady-state steps of each "
            "run are needed)"
        )
    figures += (
        f", {words.relative(figure.ratio - 1)}, 95 % interval {words.relative(figure.low - 1)} to "
        f"{words.relative(figure.high - 1)}"
    )
    if not figure.is_visible:
        return f"No difference in speed between {a} and {b} was detectable ({figures})"
    is_faster = (figure.ratio < 1) == is_by_step
    return f"{b} was {'faster' if is_faster else 'slower'} than {a} ({figures})"


def _memory(pair: RunPair) -> list[str]:
    figure = pair.figure("peak_allocated")
    if figure.ratio is None:
        return []
    if abs(figure.ratio - 1) < PRACTICAL:
        return [f"the same peak of memory ({words.size(figure.after)})"]
    change = words.relative(figure.ratio - 1)
    return [f"peak allocated {words.size(figure.before)} → {words.size(figure.after)} ({change})"]


def _loss(baseline: RunFacts, pair: RunPair) -> list[str]:
    figure = pair.figure("loss_at_equal_samples")
    if figure.before is None or figure.after is None:
        return []
    text = FIGURES[figure.name].text
    change = "" if figure.ratio is None else f" ({words.relative(figure.ratio - 1)})"
    samples = words.count(None if baseline.equal_samples is None else round(baseline.equal_samples))
    return [f"loss after {samples} samples {text(figure.before)} → {text(figure.after)}{change}"]


def _settings(baseline: RunFacts, other: RunFacts) -> str:
    rows = settings_that_differ([baseline, other])
    if not rows:
        return "the recorded settings are the same"
    differences = ", ".join(f"{row.name} {row.values[0]} → {row.values[1]}" for row in rows[:_MOST_SETTINGS])
    more = f" and {len(rows) - _MOST_SETTINGS} more" if len(rows) > _MOST_SETTINGS else ""
    return f"settings that differ: {differences}{more}"
