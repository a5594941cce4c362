"""Comparison of settings that cannot change in a live run, and of devices: runs in fresh processes."""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from statistics import fmean, median
from typing import NamedTuple

from harness.analysis.effect.measured import PRACTICAL, THROUGHPUT, Word
from harness.errors import LogError, RunStateError
from harness.records.run import RunState
from harness.settings import Settings
from harness.settings.spec import change
from harness.store.folder import RunFolder
from harness.supervisor import RunSummary, Supervisor
from harness.tune.planning import FRESH_RUN_S
from harness.tune.rows import PEAK_ALLOCATED, PEAK_RESERVED, Comparison, Trial, TrialFigure, TrialOutcome
from harness.tune.trial_run import SOURCE, Interrupted, Watching, empty_trial, step_samples

_POLL_S = 0.2
# The confidence of an interval over runs in fresh processes.
_CONFIDENCE = 0.95


class FreshFigures(NamedTuple):
    """The figures of one run: medians of its last steps, and the peaks of the whole run."""

    sample_ns: float
    step_ns: float
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None


def compare_fresh(
    supervisor: Supervisor,
    start: Callable[[Settings], RunFolder],
    baseline: Settings,
    comparison: Comparison,
    estimated_s: float,
    watching: Watching,
) -> Trial:
    """Compare runs in processes of their own, in the order A B B A. Raises Interrupted, StepscopeError."""
    began_s = time.monotonic()
    context = change(baseline, {**comparison.context, "max_seconds": FRESH_RUN_S})
    arms = (context, change(context, comparison.changes))
    rows: tuple[list[FreshFigures], list[FreshFigures]] = ([], [])
    for pair in range(comparison.pairs):
        for arm in (0, 1) if pair % 2 == 0 else (1, 0):
            if watching.should_end():
                raise Interrupted
            folder = start(arms[arm])
            run = _finish(supervisor, folder, watching)
            if run.step_ns is None or run.status.state is not RunState.FINISHED:
                is_oom = run.status.state is RunState.OUT_OF_MEMORY
                outcome = TrialOutcome.OUT_OF_MEMORY if is_oom else TrialOutcome.FAILED
                duration_s = time.monotonic() - began_s
                return empty_trial(comparison, outcome, run.status.message, duration_s, estimated_s)
            of_step = step_samples(arms[arm].model_dump())
            peaks = run.peak_allocated_bytes, run.peak_reserved_bytes
            rows[arm].append(FreshFigures(run.step_ns / of_step, run.step_ns, *peaks))
        watching.show(pair + 1)
    samples = (step_samples(arms[0].model_dump()), step_samples(arms[1].model_dump()))
    return Trial(
        comparison.stage,
        comparison.context,
        comparison.changes,
        TrialOutcome.MEASURED,
        comparison.pairs,
        fresh_figures(*rows),
        samples,
        f"{comparison.pairs} pairs of runs in fresh processes.",
        (),
        time.monotonic() - began_s,
        estimated_s,
        is_fresh=True,
    )


def fresh_figures(a: list[FreshFigures], b: list[FreshFigures]) -> tuple[TrialFigure, ...]:
    """Return the figures of pairs of runs, with Student's t interval of the mean logarithm of their ratios:
    there are too few for a rank test."""
    figures = [
        _fresh_figure("time per sample", [r.sample_ns for r in a], [r.sample_ns for r in b], is_time=True),
        _fresh_figure(
            THROUGHPUT.name, [1e9 / r.sample_ns for r in a], [1e9 / r.sample_ns for r in b], is_time=False
        ),
    ]
    peaks = (
        (
            PEAK_ALLOCATED,
            [(x.peak_allocated_bytes, y.peak_allocated_bytes) for x, y in zip(a, b, strict=True)],
        ),
        (PEAK_RESERVED, [(x.peak_reserved_bytes, y.peak_reserved_bytes) for x, y in zip(a, b, strict=True)]),
    )
    for name, pairs in peaks:
        points = [(float(x), float(y)) for x, y in pairs if x and y]
        if len(points) == len(a):
            figures.append(_fresh_figure(name, [x for x, _ in points], [y for _, y in points], is_time=None))
    return tuple(figures)


def _fresh_figure(name: str, before: list[float], after: list[float], *, is_time: bool | None) -> TrialFigure:
    from scipy import stats  # Takes a second.

    logs = [math.log(y / x) for x, y in zip(before, after, strict=True)]
    typical = fmean(logs)
    low = high = typical
    if max(logs) > min(logs):
        interval = stats.ttest_1samp(logs, 0.0).confidence_interval(_CONFIDENCE)
        low, high = float(interval.low), float(interval.high)
    low, high, effect = math.expm1(low), math.expm1(high), math.expm1(typical)
    less, more = {
        True: (Word.FASTER, Word.SLOWER),
        False: (Word.SLOWER, Word.FASTER),
        None: (Word.LESS, Word.MORE),
    }[is_time]
    word = Word.INCONCLUSIVE
    if low >= -PRACTICAL and high <= PRACTICAL:
        word = Word.NO_PRACTICAL_DIFFERENCE
    elif low > 0:
        word = more
    elif high < 0:
        word = less
    value = median(before)
    return TrialFigure(name, value, value * (1 + effect), effect, low, high, word)


def _finish(supervisor: Supervisor, folder: RunFolder, watching: Watching) -> RunSummary:
    """Wait for the end of a run; stop it when the caller ends the comparison."""
    while True:
        run = supervisor.summary(folder)
        if run.status.state.is_over:
            return run
        if watching.should_end():
            with suppress(RunStateError, LogError):  # It has just ended.
                supervisor.stop(folder, source=SOURCE)
            raise Interrupted
        time.sleep(_POLL_S)
