"""Scripts at random, each with one behavior of its memory: whether the verdicts agree with the truth.

The seed of the first script is another each time, and is printed; the variable STEPSCOPE_BENCH_SEED, or
`--first`, sets it. STEPSCOPE_BENCH_KEEP names a folder in which the scripts and their runs are kept.
"""

import os
import secrets
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.bench.figures import Figure
from tests.bench.loops import band
from tests.bench.memory_runs import run_memory_scripts
from tests.bench.memory_scripts import draw_script

_SCRIPTS, _QUICK_SCRIPTS = 60, 8
_AT_A_TIME = int(os.environ.get("STEPSCOPE_BENCH_PROCESSES") or 2)


def figures(
    folder: Path, is_quick: bool, seeds: int | None = None, first: int | None = None
) -> Iterator[Figure]:
    """The share of scripts that are fully right, then those with each kind of difference."""
    if first is None:
        first = int(os.environ.get("STEPSCOPE_BENCH_SEED") or secrets.randbelow(10**6))
    count = seeds or (_QUICK_SCRIPTS if is_quick else _SCRIPTS)
    print(f"seeds {first} to {first + count - 1}", flush=True)
    if kept := os.environ.get("STEPSCOPE_BENCH_KEEP"):
        folder = Path(kept).absolute()
        folder.mkdir(parents=True, exist_ok=True)
    kinds: Counter[str] = Counter()
    right = 0
    for draw, differences, notes in run_memory_scripts(
        [draw_script(first + number) for number in range(count)], folder, _AT_A_TIME
    ):
        right += not differences
        kinds.update(differences.keys())
        if differences or notes:
            lines = [f"{kind}: {text}" for kind, text in differences.items()] + [
                f"({note})" for note in notes
            ]
            print(f"\nseed {draw.seed}: {draw.words}", *lines, sep="\n  ", flush=True)
    low, high = band(right, count)
    name = f"scripts fully right, {right} of {count}, 95 % band {100 * low:.0f} to {100 * high:.0f} %"
    yield Figure(name, [100 * right / count], "%")
    for kind, number in kinds.most_common():
        yield Figure(f"scripts with other {kind}", [number], "scripts")
