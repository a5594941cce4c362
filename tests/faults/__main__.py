"""`python -m tests.faults [--quick] [--seed N] [NAME…]`: measure, print, and write docs/reliability.md."""

import argparse
import secrets
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.scenario import Bench
from tests.faults.table import SCENARIOS, Row, commit_here, measure, page

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"


def main() -> int:
    """Measure; 1 when a promise is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("names", metavar="NAME", nargs="*", help="scenarios (default: all; writes the page)")
    parser.add_argument("--quick", action="store_true", help="few cases of each")
    parser.add_argument("--seed", type=int, default=None, help="seeds what is random (default: a new one)")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - {scenario.name for scenario in SCENARIOS}
    if unknown:
        parser.error(
            f"no scenario {', '.join(sorted(unknown))}; there are {', '.join(s.name for s in SCENARIOS)}"
        )
    seed = secrets.randbelow(10**6) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    began_s, commit = time.monotonic(), commit_here()
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory(prefix="stepscope-faults-") as folder,
        Bench(Path(folder), arguments.quick, seed) as bench,
    ):
        for scenario in SCENARIOS:
            if not arguments.names or scenario.name in arguments.names:
                rows.append(measure(scenario, bench))
                print(rows[-1].line, flush=True)
    if not arguments.names and not arguments.quick:
        PAGE.write_text(page(rows, seed, time.monotonic() - began_s, commit), encoding="utf-8")
    return any(row.broken for row in rows)


if __name__ == "__main__":
    sys.exit(main())
