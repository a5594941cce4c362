"""The order of a tune's comparisons, as pure functions of the results so far.

Each setting is compared by itself with the baseline; the batch size is doubled as long as it pays off. Then
settings that are better by their interval are adopted greedily, the best first: each further one is compared
on top of those before it. Every adopted setting is compared once more with all others in effect, and dropped
if it is no longer better; in the end all of them together are compared with the baseline.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from harness import words
from harness.analysis.effect.measured import Word
from harness.errors import UsageError
from harness.records.measurement import LEAST_PAIRS, MOST_PAIRS, block_s
from harness.records.run import DeviceKind
from harness.settings.spec import SPECS
from harness.tune.candidates import BATCH, DEVICE, Changes, batches, candidates, is_live
from harness.tune.rows import Comparison, Goal, Trial, TrialOutcome, TrialStage, Tune, gain, is_better

# Of the budget, for settings by themselves; the rest is for combinations.
SINGLES_SHARE = 0.6
# A process that starts, and one comparison of eight pairs of the shortest blocks.
LEAST_BUDGET_S = 20.0
# Doubling the batch goes on while it improves the goal by this share; while it improves it by much, before
# the other settings are compared, else after them.
_LEAST_GAIN = 0.01
_MUCH_GAIN = 0.10
# Of the budget: a further doubling that takes longer comes after the other settings, lest nothing is left to
# combine it with.
_DOUBLING_SHARE = 0.05
# A budget in which nothing was compared is advised to be this many times as long.
_MORE_BUDGET = 4
# Runs of each arm, in the order A B B A, and the length of one; a process starts within about as long.
FRESH_PAIRS = 4
FRESH_RUN_S = 4.0
_FRESH_START_S = 5.0


class Combination(NamedTuple):
    """The adopted changes, in the order of adoption, each with the trial that it was adopted for."""

    parts: tuple[Trial, ...]

    @property
    def changes(self) -> dict[str, Any]:
        """All changes."""
        return merged([part.changes for part in self.parts])


def merged(parts: Sequence[Changes]) -> dict[str, Any]:
    """Return all changes as one."""
    return {name: value for part in parts for name, value in part.items()}


def next_comparison(tune: Tune) -> Comparison | None:
    """Return the next comparison that fits the remaining budget; None at the end."""
    assert tune.device is not None
    left_s = tune.remaining_s
    # A short budget has time for settings by themselves alone; the first one may use all of it.
    singles_s = SINGLES_SHARE * tune.budget_s - tune.spent_s if tune.trials else left_s
    queues = (
        (_singles(tune), singles_s),
        (_repeats(tune), singles_s),
        (_combinations(tune), left_s),
        (_devices(tune), left_s),
        # What the combinations did not need.
        (_singles(tune), left_s),
        (_repeats(tune), left_s),
    )
    fitting = (one for queue, limit_s in queues for one in queue if estimated_s(tune, one) <= limit_s)
    return next(fitting, None)


def unmeasured(tune: Tune) -> list[Changes]:
    """Return the single changes for which the budget left no time, with the next size of the batch."""
    if tune.device is None:
        return []
    singles = [changes for changes in _candidates(tune) if single(tune, changes) is None]
    return [*singles, *_next_batch(tune, _LEAST_GAIN)]


def estimated_s(tune: Tune, comparison: Comparison) -> float:
    """Return the probable duration of a comparison, from the steps so far and from earlier estimates."""
    if comparison.is_fresh:
        return 2 * comparison.pairs * (FRESH_RUN_S + _FRESH_START_S)
    block_a = block_s(_step_s(tune, comparison.context))
    block_b = block_s(_step_s(tune, {**comparison.context, **comparison.changes}))
    return (comparison.pairs * (block_a + block_b) + block_b) * _experience(tune)


def check_plan(tune: Tune) -> None:
    """Raise UsageError when there is nothing to compare, or, with the least budget, no time for one
    comparison."""
    assert tune.device is not None
    if tune.trials:
        return
    singles = [*_singles(tune), *_devices(tune)]
    if not singles:
        labels = ", ".join(SPECS[name].label for name in tune.selected) or "any setting"
        raise UsageError(
            f"There is nothing to compare: {tune.baseline.model} on {tune.device.name} has no other value of "
            f"{labels}. Select other settings."
        )
    needed_s = min(estimated_s(tune, comparison) for comparison in singles)
    if needed_s > tune.remaining_s:
        step = words.fine_duration(None if tune.step_s is None else 1e9 * tune.step_s)
        least_s = math.ceil(1.1 * (tune.spent_s + needed_s))
        raise UsageError(
            f"The budget of {words.span(tune.budget_s)} is too short: a step of the baseline takes {step}, "
            f"so one comparison needs {words.span(needed_s)}. Give --budget {least_s}s or more."
        )


def check_result(tune: Tune) -> None:
    """Raise UsageError when the budget ended before one comparison."""
    if tune.trials or tune.remaining_s > 0:
        return
    baseline = "the baseline did not reach its steady state"
    part = baseline if tune.device is None else "the first comparison was not completed"
    raise UsageError(
        f"The budget of {words.span(tune.budget_s)} is too short: {part}. Give --budget "
        f"{math.ceil(_MORE_BUDGET * tune.budget_s)}s or more."
    )


def single(tune: Tune, changes: Changes) -> Trial | None:
    """Return the newest trial of one setting by itself."""
    return trial_of(tune, TrialStage.SINGLE, {}, changes)


def trial_of(tune: Tune, stage: TrialStage, context: Changes, changes: Changes) -> Trial | None:
    """Return the newest trial of a comparison."""
    key = (stage, dict(context), dict(changes))
    matches = [one for one in tune.trials if (one.stage, dict(one.context), dict(one.changes)) == key]
    return matches[-1] if matches else None


def best_singles(tune: Tune) -> list[Trial]:
    """Return the better ones of the settings by themselves, one value for each, the best first."""
    best: dict[str, Trial] = {}
    for trial in tune.trials:
        if trial.stage is not TrialStage.SINGLE or single(tune, trial.changes) is not trial:
            continue
        group = next(iter(trial.changes))
        if is_better(trial, tune.goal) and (
            group not in best or gain(trial, tune.goal) > gain(best[group], tune.goal)
        ):
            best[group] = trial
    return sorted(best.values(), key=lambda trial: -gain(trial, tune.goal))


def combination(tune: Tune) -> Combination:
    """Return the best combination so far: the adopted changes, without settings that are not better on top of
    the others; or an earlier one that is better by its comparison with the baseline, as long as a setting
    compared since has not been combined."""
    totals = [at for at, trial in enumerate(tune.trials, start=1) if trial.stage is TrialStage.TOTAL]
    earlier = [_combined(tune, tune._replace(trials=tune.trials[:at])) for at in totals]
    return max([_combined(tune, tune), *earlier], key=lambda combined: _gain(tune, combined))


def _combined(tune: Tune, then: Tune) -> Combination:
    """Return the combination of the state `then`, as far as it is better by all comparisons of `tune`."""
    adopted = _adopted(then)
    if len(adopted) > 1:
        total = trial_of(tune, TrialStage.TOTAL, {}, merged([part.changes for part in adopted]))
        if total is not None and not is_better(total, tune.goal):
            adopted = adopted[:1]
    return Combination(tuple(adopted))


def _gain(tune: Tune, combined: Combination) -> float:
    """Return the improvement over the baseline: as measured, else from the product of the parts."""
    total = trial_of(tune, TrialStage.TOTAL, {}, combined.changes)
    if total is not None:
        return gain(total, tune.goal)
    sign = -1 if tune.goal is Goal.MEMORY else 1
    ratio: float = math.prod(1 + sign * gain(part, tune.goal) for part in combined.parts)
    return sign * (ratio - 1)


def _adopted(tune: Tune) -> list[Trial]:
    adopted: list[Trial] = []
    for winner in best_singles(tune):
        context = merged([part.changes for part in adopted])
        trial = winner if not adopted else trial_of(tune, TrialStage.FORWARD, context, winner.changes)
        if trial is not None and is_better(trial, tune.goal):
            adopted.append(trial)
    for part in adopted[:-1]:
        trial = trial_of(tune, TrialStage.DROP, _without(adopted, part), part.changes)
        if trial is not None and not is_better(trial, tune.goal):
            adopted = [other for other in adopted if other is not part]
    return adopted


def _without(adopted: Sequence[Trial], part: Trial) -> dict[str, Any]:
    return merged([other.changes for other in adopted if other is not part])


def _compared(stage: TrialStage, context: Changes, changes: Changes, pairs: int = LEAST_PAIRS) -> Comparison:
    is_fresh = not is_live({**context, **changes})
    return Comparison(stage, dict(context), dict(changes), FRESH_PAIRS if is_fresh else pairs, is_fresh)


def _is_selected(tune: Tune, name: str) -> bool:
    return not tune.selected or name in tune.selected


def _candidates(tune: Tune) -> list[Changes]:
    """Return the single changes of the selected settings, without sizes of the batch."""
    assert tune.device is not None
    singles = candidates(tune.baseline, tune.device)
    return [changes for changes in singles if _is_selected(tune, next(iter(changes)))]


def _singles(tune: Tune) -> Iterator[Comparison]:
    singles = _candidates(tune)
    promising = [changes for changes in _next_batch(tune, _MUCH_GAIN) if _comes_first(tune, changes)]
    rest = _next_batch(tune, _LEAST_GAIN)
    for changes in (*singles[:1], *promising, *singles[1:], *rest):
        if single(tune, changes) is None:
            yield _compared(TrialStage.SINGLE, {}, changes)


def _comes_first(tune: Tune, doubled: Changes) -> bool:
    """Return whether a doubled batch is compared before the other settings."""
    is_first = doubled[BATCH] == 2 * tune.baseline.batch_size
    duration_s = estimated_s(tune, _compared(TrialStage.SINGLE, {}, doubled))
    return is_first or duration_s <= _DOUBLING_SHARE * tune.budget_s


def _next_batch(tune: Tune, least_gain: float) -> Iterator[Changes]:
    """Yield the next size of the batch, if the last doubling improved the goal by the share `least_gain`."""
    if tune.goal is Goal.MEMORY or not _is_selected(tune, BATCH):
        return
    before = 0.0
    for changes in batches(tune.baseline, tune.largest_batch):
        trial = single(tune, changes)
        if trial is None:
            yield changes
            return
        now = gain(trial, tune.goal)
        if trial.outcome is not TrialOutcome.MEASURED or now < (1 + before) * (1 + least_gain) - 1:
            return
        before = now


def _repeats(tune: Tune) -> Iterator[Comparison]:
    """Yield inconclusive comparisons of settings that may be better, once more with as many pairs as their
    noise requires. The first result does not count then."""
    singles = [trial for trial in tune.trials if trial.stage is TrialStage.SINGLE]
    for trial in sorted(singles, key=lambda trial: -gain(trial, tune.goal)):
        main = trial.main
        if main is None or main.word is not Word.INCONCLUSIVE or main.more_pairs is None or trial.is_fresh:
            continue
        if sum(other.changes == trial.changes for other in singles) == 1:
            pairs = min(MOST_PAIRS, trial.pairs + main.more_pairs)
            yield _compared(TrialStage.SINGLE, {}, trial.changes, pairs)


def _combinations(tune: Tune) -> Iterator[Comparison]:
    """Yield the next comparisons of more than one setting: adopted settings are first extended, then each one
    is tested, then all together."""
    adopted: list[Trial] = []
    for winner in best_singles(tune):
        context = merged([part.changes for part in adopted])
        trial = winner if not adopted else trial_of(tune, TrialStage.FORWARD, context, winner.changes)
        if trial is None:
            yield _compared(TrialStage.FORWARD, context, winner.changes, winner.pairs)
        elif is_better(trial, tune.goal):
            adopted.append(trial)
    for part in adopted[:-1]:
        context = _without(adopted, part)
        trial = trial_of(tune, TrialStage.DROP, context, part.changes)
        if trial is None:
            yield _compared(TrialStage.DROP, context, part.changes, part.pairs)
        elif not is_better(trial, tune.goal):
            adopted = [other for other in adopted if other is not part]
    if len(adopted) > 1:
        changes = merged([part.changes for part in adopted])
        if trial_of(tune, TrialStage.TOTAL, {}, changes) is None:
            pairs = max(LEAST_PAIRS, *(part.pairs for part in adopted if not part.is_fresh))
            yield _compared(TrialStage.TOTAL, {}, changes, pairs)


def _devices(tune: Tune) -> Iterator[Comparison]:
    """Yield the comparison of a GPU with the CPU."""
    assert tune.device is not None
    changes = {DEVICE: DeviceKind.CPU.value}
    is_gpu = tune.device.kind is not DeviceKind.CPU
    if is_gpu and _is_selected(tune, DEVICE) and trial_of(tune, TrialStage.DEVICE, {}, changes) is None:
        yield _compared(TrialStage.DEVICE, {}, changes)


def _step_s(tune: Tune, changes: Changes) -> float:
    """Return the probable time of a step with `changes`: as measured with the largest batch up to theirs, and
    from there on in proportion to the batch, which is too long where the time of a step is not that of its
    samples, as with a slow loader."""
    batch = int(changes.get(BATCH, tune.baseline.batch_size))
    step_times = {tune.baseline.batch_size: tune.step_s or 0.0}
    for trial in tune.trials:
        times = trial.sample_ns
        if trial.stage is TrialStage.SINGLE and BATCH in trial.changes and times is not None:
            step_times[trial.changes[BATCH]] = times[1] * trial.samples[1] / 1e9
    nearest = max((size for size in step_times if size <= batch), default=tune.baseline.batch_size)
    return float(step_times[nearest] * batch / nearest)


def _experience(tune: Tune) -> float:
    """Return how much longer comparisons take than estimated: the median of those so far."""
    ratios = sorted(
        trial.duration_s / trial.estimated_s
        for trial in tune.trials
        if trial.outcome is TrialOutcome.MEASURED and trial.estimated_s > 0 and not trial.is_fresh
    )
    return max(0.5, ratios[len(ratios) // 2]) if ratios else 1.0
