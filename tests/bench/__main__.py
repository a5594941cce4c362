"""`python -m tests.bench [NAME…] [--quick] [--write]`: measure, print a table, exit with 1 when a target is
missed.

A benchmark is a function from a scratch folder, whether to be quick, and options of its own to its figures.
They are named here and loaded when they are run, so that those without a browser need none.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path

from tests.bench.figures import HEADER, Figure, all_met, machine, row
from tests.bench.report import DOC, has_place, with_table

Benchmark = Callable[..., Iterable[Figure]]

BENCHMARKS: Mapping[str, str] = {
    "cost-short": "tests.bench.cost:short_step_figures",
    "cost-long": "tests.bench.cost:long_step_figures",
    "cost-within": "tests.bench.cost:within_step_figures",
    "flat": "tests.bench.flat",
    "writer": "tests.bench.writer",
    "reader": "tests.bench.reader",
    "script": "tests.bench.script",
    "sampler": "tests.bench.sampler",
    "largest": "tests.bench.largest",
    "leak": "tests.bench.leak",
    "leak-patterns": "tests.bench.leak_patterns",
    "oom-time": "tests.bench.oom_time",
    "page": "tests.bench.page",
    "runs": "tests.bench.runs",
    "profile": "tests.bench.profile",
    "predict": "tests.bench.predict",
    "predict-own": "tests.bench.own_models",
    "largest-own": "tests.bench.own_models:largest_figures",
    "effect": "tests.bench.effect",
    "measured": "tests.bench.measured",
    "rank-waits": "tests.bench.rank_waits",
    "ranks": "tests.bench.ranks",
    "stragglers": "tests.bench.stragglers",
    "loops": "tests.bench.loops",
    "script-memory": "tests.bench.script_memory",
}
"""The module of each benchmark, and after a colon its function where that is not `figures`."""

ONLY_BY_NAME = frozenset(
    {"effect", "largest-own", "measured", "predict-own", "ranks", "script-memory", "stragglers"}
)
"""Take long, or many runs of several processes."""

OPTIONS = {
    "effect": ("minutes", "seed", "at_a_time", "runs"),
    "measured": ("kinds", "count", "results", "seed"),
    "ranks": ("seed",),
    "stragglers": ("seed", "ranks"),
    "loops": ("seeds", "first"),
    "script-memory": ("seeds", "first"),
}
"""The options of single benchmarks."""


def main() -> int:
    """Run the named benchmarks; by default all but those that take too long."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="fewer and shorter measurements")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/bench.md")
    parser.add_argument("--minutes", type=float, help="of 'effect': how long each of its two parts trains")
    parser.add_argument(
        "--seed", type=int, help="of 'effect', 'measured', 'ranks', 'stragglers': another draw"
    )
    parser.add_argument("--at-a-time", type=int, help="of 'effect': so many runs at once, each on its cores")
    parser.add_argument("--ranks", type=int, help="of 'stragglers': ranks of each run; by default 2, then 4")
    parser.add_argument("--runs", type=Path, help="of 'effect': a folder that keeps its runs, and has some")
    parser.add_argument("--kinds", help="of 'measured': some of alone,drift,beside,effect")
    parser.add_argument("--count", type=int, help="of 'measured': measurements of each kind")
    parser.add_argument("--results", type=Path, help="of 'measured': a file that results are added to")
    parser.add_argument("--seeds", type=int, help="of 'loops', 'script-memory': so many scripts")
    parser.add_argument("--first", type=int, help="of 'loops', 'script-memory': the seed of the first one")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"there is no benchmark {sorted(unknown)[0]!r}; there are: {', '.join(BENCHMARKS)}")
    if arguments.write:
        text = DOC.read_text(encoding="utf-8")
        for name in arguments.names or BENCHMARKS:
            if not has_place(text, name):
                parser.error(f"docs/bench.md has no generated table for {name!r}")
    names = {name for of_one in OPTIONS.values() for name in of_one}
    options = {name: value for name in sorted(names) if (value := getattr(arguments, name)) is not None}
    allowed = OPTIONS.get(arguments.names[0], ()) if len(arguments.names) == 1 else ()
    if not options.keys() <= set(allowed):
        parser.error(f"{', '.join(sorted(options.keys() - set(allowed)))}: not an option of these benchmarks")
    result: list[Figure] = []
    print(f"{machine()}\n\n{HEADER}", flush=True)
    for name in arguments.names or [name for name in BENCHMARKS if name not in ONLY_BY_NAME]:
        measure = _function(name)
        began, rows = machine(), []
        with tempfile.TemporaryDirectory(prefix="stepscope-bench-") as folder:
            for figure in measure(Path(folder), arguments.quick, **options):
                result.append(figure)
                rows.append(row(figure))
                print(rows[-1], flush=True)
        if arguments.write:
            _write(name, arguments.quick, began, rows)
    print(f"\n{machine()}")
    return 0 if all_met(result) else 1


def _function(name: str) -> Benchmark:
    module, _, function = BENCHMARKS[name].partition(":")
    benchmark: Benchmark = getattr(import_module(module), function or "figures")
    return benchmark


def _write(name: str, is_quick: bool, began: str, rows: list[str]) -> None:
    """Put a benchmark's table into the docs, with the command, the machine and its load before and after."""
    command = f"python -m tests.bench {name}{' --quick' if is_quick else ''}"
    measured = f"Written by `{command} --write` on {began}; at the end: load {os.getloadavg()[0]:.1f}."
    table = "\n".join([measured, "", HEADER, *rows])
    DOC.write_text(with_table(DOC.read_text(encoding="utf-8"), name, table), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
