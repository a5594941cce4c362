"""Seeds, folder and share of right ones, for benchmarks of scripts at random."""

import os
import secrets
from math import sqrt
from pathlib import Path

from tests.bench.figures import Figure

# Of a normal distribution: 95 % are within so many standard deviations.
_Z = 1.96


def seeds_from(first: int | None, count: int) -> range:
    """Return `count` seeds from `first` on, or from the variable STEPSCOPE_BENCH_SEED, or from another one
    each time, and print them."""
    if first is None:
        first = int(os.environ.get("STEPSCOPE_BENCH_SEED") or secrets.randbelow(10**6))
    print(f"seeds {first} to {first + count - 1}", flush=True)
    return range(first, first + count)


def folder_of_scripts(folder: Path) -> Path:
    """Return the folder that STEPSCOPE_BENCH_KEEP names, which stays, or else `folder`."""
    if not (name := os.environ.get("STEPSCOPE_BENCH_KEEP")):
        return folder
    folder = Path(name).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def share_right(noun: str, right: int, count: int) -> Figure:
    """Return the share of `count` that are `right`, with its band."""
    low, high = band(right, count)
    name = f"{noun} fully right, {right} of {count}, 95 % band {100 * low:.0f} to {100 * high:.0f} %"
    return Figure(name, [100 * right / count], "%")


def band(right: int, count: int) -> tuple[float, float]:
    """Return Wilson's interval of the share of `right` among `count`, at 95 %."""
    share, spread = right / count, _Z**2 / count
    half = _Z * sqrt((share * (1 - share) + spread / 4) / count)
    return (share + spread / 2 - half) / (1 + spread), (share + spread / 2 + half) / (1 + spread)
