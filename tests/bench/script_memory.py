"""Scripts at random, each with one behavior of its memory: whether the verdicts agree with the truth.

The seed of the first script is another each time, and is printed; the variable STEPSCOPE_BENCH_SEED, or
`--first`, sets it. STEPSCOPE_BENCH_KEEP names a folder in which the scripts and their runs are kept.
"""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.bench.figures import Figure
from tests.bench.memory_runs import run_memory_scripts
from tests.bench.memory_scripts import draw_script
from tests.bench.random_scripts import folder_of_scripts, seeds_from, share_right

_SCRIPTS, _QUICK_SCRIPTS = 60, 8
_AT_A_TIME = int(os.environ.get("STEPSCOPE_BENCH_PROCESSES") or 2)


def figures(
    folder: Path, is_quick: bool, seeds: int | None = None, first: int | None = None
) -> Iterator[Figure]:
    """The share of scripts that are fully right, then those with each kind of difference."""
    count = seeds or (_QUICK_SCRIPTS if is_quick else _SCRIPTS)
    draws = [draw_script(seed) for seed in seeds_from(first, count)]
    kinds: Counter[str] = Counter()
    right = 0
    for draw, differences, notes in run_memory_scripts(draws, folder_of_scripts(folder), _AT_A_TIME):
        right += not differences
        kinds.update(differences.keys())
        if differences or notes:
            lines = [f"{kind}: {text}" for kind, text in differences.items()] + [
                f"({note})" for note in notes
            ]
            print(f"\nseed {draw.seed}: {draw.words}", *lines, sep="\n  ", flush=True)
    yield share_right("scripts", right, count)
    for kind, number in kinds.most_common():
        yield Figure(f"scripts with other {kind}", [number], "scripts")
