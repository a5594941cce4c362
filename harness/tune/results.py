"""The results of a tune as rows: the ranking with intervals, the Pareto front, the steps from the baseline to
the best settings, and the winner as a command line."""

import shlex
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from harness.catalog.own import is_own
from harness.settings import Settings
from harness.settings.resolve import resolve
from harness.settings.spec import SPECS, change, change_title
from harness.tune.candidates import BATCH, safe_batch
from harness.tune.planning import combination, single, trial_of, unmeasured
from harness.tune.rows import (
    PEAK_ALLOCATED,
    Goal,
    Trial,
    TrialFigure,
    TrialOutcome,
    TrialStage,
    Tune,
    TuneState,
    gain,
)

BASELINE = "baseline"
NOT_COMPARED = "not compared"
# The verdict and the note of a setting without a comparison.
_UNMEASURED = {
    TuneState.RUNNING: ("not compared yet", ""),
    TuneState.COMPLETED: (NOT_COMPARED, "The budget left no time for it."),
    TuneState.STOPPED: (NOT_COMPARED, "The tune was stopped before."),
    TuneState.FAILED: (NOT_COMPARED, ""),
}


class FigureEstimate(NamedTuple):
    """A figure with its 95 % interval; the baseline's is a point, since all others are relative to it."""

    value: float
    low: float
    high: float

    @classmethod
    def exactly(cls, value: float) -> "FigureEstimate":
        """Return a figure without an interval."""
        return cls(value, value, value)


class RankedRow(NamedTuple):
    """One set of settings in the ranking. None: not measured, and `note` says why."""

    title: str
    changes: dict[str, Any]
    samples_per_s: FigureEstimate | None
    step_ns: FigureEstimate | None
    peak_bytes: FigureEstimate | None
    # Relative to the baseline: "faster", "less memory", "inconclusive", …
    verdict: str
    is_winner: bool = False
    # No other row has both more samples/s and a lower peak.
    is_on_front: bool = False
    note: str = ""


class WaterfallBar(NamedTuple):
    """One bar from the baseline to the best settings: the samples/s before and after it."""

    title: str
    before: float
    after: float


def ranking(tune: Tune) -> list[RankedRow]:
    """Return the baseline, each setting by itself and the best combination, the best first; those without
    figures last."""
    baseline_ns = baseline_sample_ns(tune)
    if baseline_ns is None:
        measured: list[RankedRow] = []
    else:
        measured = [_baseline_row(tune, baseline_ns)]
    failed: list[RankedRow] = []
    winner = combination(tune).changes
    for trial in _ranked_trials(tune):
        row = _row(tune, trial, winner)
        (failed if row.samples_per_s is None else measured).append(row)
    measured.sort(key=lambda row: _order(row, tune.goal))
    is_won = any(row.is_winner for row in measured)
    rows = [
        row._replace(
            is_on_front=_is_on_front(row, measured),
            is_winner=row.is_winner or (not is_won and not row.changes),
        )
        for row in measured
    ]
    verdict, note = _UNMEASURED[tune.state]
    late = [
        RankedRow(change_title(changes), dict(changes), None, None, None, verdict, note=note)
        for changes in unmeasured(tune)
    ]
    return [*rows, *failed, *late]


def waterfall(tune: Tune) -> list[WaterfallBar]:
    """Return the bars from the baseline to the best settings, setting by setting. A last bar is the
    difference between their product and the measured combination."""
    baseline_ns, best = baseline_sample_ns(tune), combination(tune)
    if baseline_ns is None or not best.parts:
        return []
    rate = 1e9 / baseline_ns
    bars = []
    for part in best.parts:
        after = rate * (1 + gain(part, Goal.THROUGHPUT))
        bars.append(WaterfallBar(change_title(part.changes), rate, after))
        rate = after
    total = trial_of(tune, TrialStage.TOTAL, {}, best.changes)
    if total is not None and len(best.parts) > 1:
        after = (1 + gain(total, Goal.THROUGHPUT)) * 1e9 / baseline_ns
        bars.append(WaterfallBar("interaction", rate, after))
    return bars


def winner_settings(tune: Tune) -> Settings:
    """Return the best settings; the baseline's where nothing is better."""
    return change(tune.baseline, combination(tune).changes)


def baseline_sentence(tune: Tune) -> str:
    """Return why a tune has no better settings than its baseline."""
    if not tune.trials:
        return "No comparison was completed."
    so_far = " so far" if tune.state is TuneState.RUNNING else ""
    if not any(trial.outcome is TrialOutcome.MEASURED for trial in tune.trials):
        return f"No comparison was measured{so_far}: the table has the reasons."
    return f"Nothing is measurably better than the baseline{so_far}."


def command_line(settings: Settings) -> str:
    """Return the command that starts a run with `settings`."""
    chosen = settings.model_dump(mode="json")
    named = {"model": settings.model, "preset": settings.preset}
    if is_own(settings.model):
        named["data"] = settings.data  # Such a model has no data by default.
    defaults = (resolve(named) if settings.preset else settings).model_dump(mode="json")
    words = ["stepscope", "run"]
    for name, value in named.items():
        words += [f"--{name}", value]
    for name, value in chosen.items():
        if name in named or value == defaults[name]:
            continue
        words += SPECS[name].arguments(value)
    return shlex.join(words)


def batch_sentence(tune: Tune) -> str:
    """Return a sentence on the largest safe batch, from the prediction and from measured errors."""
    ooms, good = _tried_batches(tune)
    measured = f" Measured up to {max(good):,}." if good else ""
    if ooms:
        measured += f" Memory ran out at {min(ooms):,}."
    predicted, safe = tune.largest_batch, largest_safe_batch(tune)
    if predicted is None or safe is None:
        if tune.state is TuneState.RUNNING and not (tune.limit_words or tune.trials):
            return "The largest batch has no prediction yet."
        fits = f" that fits into {tune.limit_words}" if tune.limit_words else ""
        return f"The largest batch{fits} was not predicted.{measured}"
    if safe < safe_batch(predicted):
        return (
            f"Largest safe batch: {safe:,}, the largest one that ran below the {min(ooms):,} at which memory "
            f"ran out. The prediction fits {predicted:,} into {tune.limit_words}."
        )
    return (
        f"Largest safe batch: {safe:,}, 10 % below the {predicted:,} that the prediction fits into "
        f"{tune.limit_words}.{measured}"
    )


def largest_safe_batch(tune: Tune) -> int | None:
    """Return the largest predicted batch less a margin, or, where memory ran out at that size or below, the
    largest one that ran below; None without a prediction."""
    if tune.largest_batch is None:
        return None
    safe, (ooms, good) = safe_batch(tune.largest_batch), _tried_batches(tune)
    if not ooms or min(ooms) > safe:
        return safe
    return max((size for size in good if size < min(ooms)), default=tune.baseline.batch_size)


def baseline_sample_ns(tune: Tune) -> float | None:
    """Return the baseline's time per sample: the median of all comparisons with it."""
    values = [
        times[0]
        for trial in tune.trials
        if not trial.context and not trial.is_fresh and (times := trial.sample_ns) is not None
    ]
    return median(values) if values else None


def baseline_peak_bytes(tune: Tune) -> float | None:
    """Return the baseline's peak of allocated memory."""
    figures = (
        trial.figure(PEAK_ALLOCATED) for trial in tune.trials if not trial.context and not trial.is_fresh
    )
    values = [figure.before for figure in figures if figure is not None and figure.before is not None]
    return median(values) if values else None


def device_trial(tune: Tune) -> Trial | None:
    """Return the comparison of the GPU with the CPU."""
    return next((trial for trial in tune.trials if trial.stage is TrialStage.DEVICE), None)


def _tried_batches(tune: Tune) -> tuple[list[int], list[int]]:
    """Return the sizes of the batch at which memory ran out, and those that were measured."""
    tried = [trial for trial in tune.trials if BATCH in trial.changes]
    ooms = [trial.changes[BATCH] for trial in tried if trial.outcome is TrialOutcome.OUT_OF_MEMORY]
    return ooms, [trial.changes[BATCH] for trial in tried if trial.outcome is TrialOutcome.MEASURED]


def _ranked_trials(tune: Tune) -> list[Trial]:
    """Return the newest trial of each setting by itself, and that of the best combination."""
    trials = [t for t in tune.trials if t.stage is TrialStage.SINGLE and single(tune, t.changes) is t]
    best = combination(tune)
    if len(best.parts) > 1:
        total = trial_of(tune, TrialStage.TOTAL, {}, best.changes)
        trials.append(best.parts[-1] if total is None else total)
    device = device_trial(tune)
    return trials if device is None else [*trials, device]


def _row(tune: Tune, trial: Trial, winner: dict[str, Any]) -> RankedRow:
    changes = {**trial.context, **trial.changes}
    title = change_title(changes)
    main, times, peak = trial.main, trial.sample_ns, trial.figure(PEAK_ALLOCATED)
    if trial.outcome is not TrialOutcome.MEASURED or main is None or times is None:
        verdict = "out of memory" if trial.outcome is TrialOutcome.OUT_OF_MEMORY else "failed"
        return RankedRow(title, changes, None, None, None, verdict, note=trial.message)
    # Arm A of a comparison in the same run as all others is the baseline, whose best estimate is of all.
    baseline_ns = times[0] if trial.context or trial.is_fresh else baseline_sample_ns(tune) or times[0]
    sample_ns = _applied(main, baseline_ns)
    step_samples = trial.samples[1]
    peak_bytes = None
    # The memory of another device is another memory.
    if peak is not None and peak.before is not None and trial.stage is not TrialStage.DEVICE:
        before = peak.before if trial.context or trial.is_fresh else baseline_peak_bytes(tune)
        peak_bytes = _applied(peak, before or peak.before)
    return RankedRow(
        title,
        changes,
        FigureEstimate(1e9 / sample_ns.value, 1e9 / sample_ns.high, 1e9 / sample_ns.low),
        FigureEstimate(*(ns * step_samples for ns in sample_ns)),
        peak_bytes,
        main.word.value,
        is_winner=changes == winner,
        note=" ".join(trial.doubts),
    )


def _baseline_row(tune: Tune, baseline_ns: float) -> RankedRow:
    settings = tune.baseline
    samples = settings.batch_size * settings.grad_accumulation
    peak_bytes = baseline_peak_bytes(tune)
    return RankedRow(
        BASELINE,
        {},
        FigureEstimate.exactly(1e9 / baseline_ns),
        FigureEstimate.exactly(baseline_ns * samples),
        None if peak_bytes is None else FigureEstimate.exactly(peak_bytes),
        "",
    )


def _applied(figure: TrialFigure, before: float) -> FigureEstimate:
    assert figure.effect is not None
    assert figure.low is not None
    assert figure.high is not None
    return FigureEstimate(*(before * (1 + share) for share in (figure.effect, figure.low, figure.high)))


def _order(row: RankedRow, goal: Goal) -> float:
    if goal is Goal.MEMORY:
        return float("inf") if row.peak_bytes is None else row.peak_bytes.value
    assert row.samples_per_s is not None
    return -row.samples_per_s.value


def _is_on_front(row: RankedRow, rows: Sequence[RankedRow]) -> bool:
    """Return whether no other row has both more samples/s and a lower peak."""
    if row.samples_per_s is None or row.peak_bytes is None:
        return False
    rate, peak = row.samples_per_s.value, row.peak_bytes.value
    for other in rows:
        if other is row or other.samples_per_s is None or other.peak_bytes is None:
            continue
        their_rate, their_peak = other.samples_per_s.value, other.peak_bytes.value
        if their_rate >= rate and their_peak <= peak and (their_rate, their_peak) != (rate, peak):
            return False
    return True
