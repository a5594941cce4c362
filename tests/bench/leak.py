"""Measure how often the leak detector is right: on seeded series and on real runs, with and without a leak.

`python -m tests.bench leak` measures and writes docs/leaks.md; `--quick` takes a part and writes nothing. The
detector was tuned on the seeds in `TUNING_SEEDS`; what is told here is of another.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.analysis.leak.growth import GrowthJudge
from tests.bench import leak_page
from tests.bench.figures import Figure
from tests.bench.leak_runs import Ran, plans, run_all
from tests.bench.leak_series import Outcome, cases, judged

TUNING_SEEDS = (1, 2, 20_261_121, 562_582_810)
SEED = 1482608818
_SERIES, _QUICK_SERIES = 280, 56
_RUNS, _QUICK_RUNS = 34, 0
_RUN_S = 20.0
LEAST_PRECISION, LEAST_RECALL = 0.98, 0.95


def figures(folder: Path, is_quick: bool) -> list[Figure]:
    """The series, the real runs, and what the detector itself costs."""
    outcomes = [judged(case) for case in cases(_QUICK_SERIES if is_quick else _SERIES, SEED)]
    result = [*of_series(outcomes), *_cost()]
    count = _QUICK_RUNS if is_quick else _RUNS
    runs = run_all(list(plans(count // 2, count - count // 2)), folder, _RUN_S)
    result += of_runs(runs)
    if not is_quick:
        leak_page.write(result, outcomes, runs, SEED)
    return result


def of_series(outcomes: Sequence[Outcome]) -> Iterator[Figure]:
    """Precision, recall, delay, slopes and what was taken back."""
    called = [outcome for outcome in outcomes if outcome.is_called]
    leaking = [outcome for outcome in outcomes if outcome.leaks]
    healthy = [outcome for outcome in outcomes if not outcome.leaks]
    above = [outcome for outcome in leaking if outcome.is_above_limit]
    name = f"{len(outcomes)} series"
    precision = sum(outcome.leaks for outcome in called) / max(len(called), 1)
    recall = sum(outcome.is_called for outcome in above) / max(len(above), 1)
    yield Figure(f"{name}: precision of the last verdict", [precision], "", LEAST_PRECISION, is_least=True)
    yield Figure(
        f"{name}: recall above the stated limit ({len(above)} leaks)", [recall], "", LEAST_RECALL, True
    )
    share = sum(outcome.is_called for outcome in leaking) / max(len(leaking), 1)
    yield Figure(f"{name}: recall of all leaks ({len(leaking)})", [share], "")
    delays = [outcome.called_at - outcome.case.onset for outcome in leaking if outcome.called_at]
    yield Figure(f"{name}: steps from a leak's onset to the verdict", delays, "steps")
    back = [outcome.called_at is not None and not outcome.is_called for outcome in healthy]
    yield Figure(f"{name}: healthy ones called a leak and later not", [100 * sum(back) / len(back)], "%")
    right = [outcome for outcome in called if outcome.leaks and outcome.last.trend is not None]
    errors = [100 * abs(o.last.trend.slope / o.case.slope - 1) for o in right if o.last.trend is not None]
    yield Figure(f"{name}: error of the slope", errors, "%")
    yield Figure(f"{name}: true slope within the interval (± 1 %)", [100 * _coverage(right)], "%")
    limits = [
        outcome.last.detection_limit for outcome in outcomes if outcome.last.detection_limit is not None
    ]
    yield Figure(f"{name}: stated limit at the end", [limit / 1024 for limit in limits], "KiB/step")


def _coverage(right: Sequence[Outcome]) -> float:
    held = [
        o.last.trend.low * 0.99 <= o.case.slope <= o.last.trend.high * 1.01
        for o in right
        if o.last.trend is not None
    ]
    return sum(held) / max(len(held), 1)


def _cost() -> Iterator[Figure]:
    """Processor time of one series, readings and judgments, in a run that looks once a second at 50 a
    second; four series make a run."""
    case = next(case for case in cases(200, SEED) if len(case.values) == 12_000)
    costs = []
    for _ in range(5):
        began = time.process_time()
        judge = GrowthJudge()
        for step, value in enumerate(case.values.tolist(), 1):
            judge.add(step, value)
            if step % 50 == 0:
                judge.judge()
        costs.append((time.process_time() - began) / len(case.values) * 1e3 * 1e3)
    yield Figure("the detector, one series: processor time of 1,000 readings", costs, "ms")


def of_runs(runs: Sequence[Ran]) -> Iterator[Figure]:
    """Precision and recall over the real runs."""
    if not runs:
        return
    called = [ran for ran in runs if ran.called]
    above = [ran for ran in runs if ran.is_above_limit]
    name = f"{len(runs)} real runs"
    precision = sum(ran.plan.leaks is not None for ran in called) / max(len(called), 1)
    yield Figure(f"{name}: precision", [precision], "", LEAST_PRECISION, is_least=True)
    right = sum(ran.called == {ran.plan.leaks} for ran in called) / max(len(called), 1)
    yield Figure(f"{name}: of those called, the right series and no other", [right], "")
    recall = sum(ran.plan.leaks in ran.called for ran in above) / max(len(above), 1)
    yield Figure(
        f"{name}: recall above the stated limit ({len(above)} leaks)", [recall], "", LEAST_RECALL, True
    )
    leaking = [ran for ran in runs if ran.plan.leaks is not None]
    share = sum(ran.plan.leaks in ran.called for ran in leaking) / len(leaking)
    yield Figure(f"{name}: recall of all leaks ({len(leaking)})", [share], "")
    yield Figure(f"{name}: steps to the verdict", [ran.called_at or 0 for ran in called] or [0], "steps")
    back = [ran.called_at is not None and not ran.called for ran in runs if ran.plan.leaks is None]
    yield Figure(f"{name}: healthy ones called a leak and later not", [100 * statistics.fmean(back)], "%")
