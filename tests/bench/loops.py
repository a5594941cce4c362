"""Training loops at random, as a person could write them, each run bare and under watch.

Each loop records the truth by lines of its own (`tests.bench.loop_record`): the number of its steps, their
samples and losses, and the time of its evaluations. Compared are the weights and the exit code with those of
the bare run, and the log with the record. The seed of the first loop is another each time, and is printed;
the variable STEPSCOPE_BENCH_SEED, or `--first`, sets it. STEPSCOPE_BENCH_KEEP names a folder in which the
scripts and their runs are kept.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.bench.figures import Figure
from tests.bench.loop_families import draw_script
from tests.bench.loop_runs import Outcome, run_loops
from tests.bench.random_scripts import folder_of_scripts, seeds_from, share_right

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


def figures(
    folder: Path, is_quick: bool, seeds: int | None = None, first: int | None = None
) -> Iterator[Figure]:
    """The share of loops that are fully right, then those with each kind of difference."""
    count = seeds or (_QUICK_LOOPS if is_quick else _LOOPS)
    draws = [draw_script(seed) for seed in seeds_from(first, count)]
    outcomes = list(run_loops(draws, folder_of_scripts(folder), _AT_A_TIME))
    yield share_right("loops", sum(not outcome.differences for outcome in outcomes), count)
    kinds = Counter(kind for outcome in outcomes for kind in outcome.differences)
    for kind in _KINDS:
        if kinds[kind]:
            yield Figure(f"loops with other {kind}", [kinds[kind]], "loops")
    for line in worst(outcomes, _WORST):
        print(line, flush=True)


def worst(outcomes: Sequence[Outcome], count: int) -> Iterator[str]:
    """Yield a line for each of the `count` loops with the worst differences."""
    wrong = [outcome for outcome in outcomes if outcome.differences]
    wrong.sort(key=lambda outcome: min(_KINDS.index(kind) for kind in outcome.differences))
    for draw, differences in wrong[:count]:
        details = "; ".join(f"{kind}: {text}" for kind, text in differences.items())
        yield f"\nseed {draw.seed}: {draw.words}\n  {details}"
