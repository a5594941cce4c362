"""Error of predictions of memory for networks as people write them, and whether the largest batch that is
said to fit a cap runs, as `predict` and `largest` measure them for the models of the catalog.

The variables STEPSCOPE_BENCH_SEED and STEPSCOPE_BENCH_KEEP are those of `predict`.
"""

import os
import random
import secrets
import statistics
from collections.abc import Iterator
from pathlib import Path

from harness import words
from tests.bench.draws import deal
from tests.bench.figures import Figure
from tests.bench.largest import judged_figures
from tests.bench.own_draws import draw_own, own_cap_values
from tests.bench.predict import MOST_ERROR_PCT, compare
from tests.bench.stored_results import StoredResults
from tests.scripts.own_networks import FAMILIES

_DRAWS, _QUICK_DRAWS = 102, 6
_TRIES, _QUICK_TRIES = 34, 2
_WORST = 10


def figures(folder: Path, is_quick: bool) -> Iterator[Figure]:
    """Print the worst errors; yield figures of all."""
    seed = _seed()
    draws = draw_own(_QUICK_DRAWS if is_quick else _DRAWS, seed, folder)
    cases, _ = compare(draws, folder, StoredResults.named_in_environment())
    for case in sorted(cases, key=lambda one: -abs(one.error_pct))[:_WORST]:
        print(f"{case.error_pct:+.1f} % of {words.size(case.real_bytes)}: {case.draw.words}")
    errors_pct = [abs(case.error_pct) for case in cases]
    name = f"prediction of own models, {len(cases)} draws, seed {seed}"
    yield Figure(f"{name}: mean absolute error", [statistics.fmean(errors_pct)], "%", MOST_ERROR_PCT)
    yield Figure(f"{name}: absolute error", errors_pct, "%")
    near = 100 * sum(error <= MOST_ERROR_PCT for error in errors_pct) / len(errors_pct)
    yield Figure(f"{name}: within {MOST_ERROR_PCT:g} %", [near], "%")
    yield Figure(f"{name}: largest absolute error", [max(errors_pct)], "%")


def largest_figures(folder: Path, is_quick: bool) -> list[Figure]:
    """The share of the largest batches that ran, and of those a quarter larger that did not."""
    seed = _seed()
    source = random.Random(seed)
    families = deal(list(FAMILIES), _QUICK_TRIES if is_quick else _TRIES, source)
    draws = [(own_cap_values(family, source, folder), 1 + at % 2) for at, family in enumerate(families)]
    return judged_figures(draws, f"largest batch of own models under a cap, seed {seed}")


def _seed() -> int:
    seed = int(os.environ.get("STEPSCOPE_BENCH_SEED") or secrets.randbelow(10**6))
    print(f"seed {seed}", flush=True)
    return seed
