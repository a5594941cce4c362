"""Training loops at random, as a person could write them, each run bare and under watch.

Each loop records the truth by lines of its own (`tests.bench.loop_record`): the number of its steps, their
samples and losses, and the time of its evaluations. Compared are the weights and the exit code with those of
the bare run, and the log with the record. The seed of the first loop is another each time, and is printed;
the variable STEPSCOPE_BENCH_SEED, or `--first`, sets it. STEPSCOPE_BENCH_KEEP names a folder in which the
scripts and their runs are kept.
"""

import os
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from math import sqrt
from pathlib import Path

from tests.bench.figures import Figure
from tests.bench.loop_families import draw_script
from tests.bench.loop_runs import Outcome, run_loops

_LOOPS, _QUICK_LOOPS = 200, 20
_AT_A_TIME = 2
_WORST = 10
# In this order: what disturbs a training, what is wrong in every step after it, what is wrong in one.
_KINDS = (
    "script",
    "exit code",
    "weights",
    "log",
    "watch",
    "steps",
    "samples",
    "loss",
    "evaluation",
    "time",
    "gap",
)
# Of a normal distribution: 95 % are within so many standard deviations.
_Z = 1.96


def figures(
    folder: Path, is_quick: bool, seeds: int | None = None, first: int | None = None
) -> Iterator[Figure]:
    """The share of loops that are fully right, then those with each kind of difference."""
    if first is None:
        first = int(os.environ.get("STEPSCOPE_BENCH_SEED") or secrets.randbelow(10**6))
    count = seeds or (_QUICK_LOOPS if is_quick else _LOOPS)
    print(f"seeds {first} to {first + count - 1}", flush=True)
    if kept := os.environ.get("STEPSCOPE_BENCH_KEEP"):
        folder = Path(kept).absolute()
        folder.mkdir(parents=True, exist_ok=True)
    outcomes = list(run_loops([draw_script(first + number) for number in range(count)], folder, _AT_A_TIME))
    right = sum(not outcome.differences for outcome in outcomes)
    low, high = band(right, count)
    name = f"loops fully right, {right} of {count}, 95 % band {100 * low:.0f} to {100 * high:.0f} %"
    yield Figure(name, [100 * right / count], "%")
    kinds = Counter(kind for outcome in outcomes for kind in outcome.differences)
    for kind in _KINDS:
        if kinds[kind]:
            yield Figure(f"loops with other {kind}", [kinds[kind]], "loops")
    for line in worst(outcomes, _WORST):
        print(line, flush=True)


def band(right: int, count: int) -> tuple[float, float]:
    """Return Wilson's interval of the share of `right` among `count`, at 95 %."""
    share, spread = right / count, _Z**2 / count
    half = _Z * sqrt((share * (1 - share) + spread / 4) / count)
    return (share + spread / 2 - half) / (1 + spread), (share + spread / 2 + half) / (1 + spread)


def worst(outcomes: Sequence[Outcome], count: int) -> Iterator[str]:
    """Yield a line for each of the `count` loops with the worst differences."""
    wrong = [outcome for outcome in outcomes if outcome.differences]
    wrong.sort(key=lambda outcome: min(_KINDS.index(kind) for kind in outcome.differences))
    for draw, differences in wrong[:count]:
        details = "; ".join(f"{kind}: {text}" for kind, text in differences.items())
        yield f"\nseed {draw.seed}: {draw.words}\n  {details}"
