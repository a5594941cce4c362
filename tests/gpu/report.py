"""`make gpu-check`: measures on a CUDA device whatever needs one, and writes a page of it to docs/gpu.

`--stage KEY` (may be repeated) runs these stages anew; without it, the stages that have not finished yet run.
Each stage is a process of its own, so that a crash costs one item. Results accumulate in
`<card>-<date>.jsonl` beside the page, in the folder GPU_OUT; a call that was cut short continues from there.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.gpu.journal import Results, ResultsFile
from tests.gpu.measures.suite import KEY
from tests.gpu.needs import needs
from tests.gpu.page import page
from tests.gpu.running import ROOT, Order, Runner, adopt_orphans, needs_run
from tests.gpu.stages import STAGES, Stage, budget_s

FOLDER = ROOT / "docs" / "gpu"
_FACTS_S = 120.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stages and write the page. 0: no stage died and none is left; 1 otherwise, or without a GPU."""
    options = _parser().parse_args(arguments)
    if options.needs:
        print("\n".join(needs()))
        return 0
    folder = Path(os.environ.get("GPU_OUT") or FOLDER).absolute()
    if options.page:
        for path in sorted(folder.glob("*.jsonl")):
            write_page(ResultsFile(path))
        return 0
    facts = _session_facts(options.device)
    if isinstance(facts, str):
        print(f"{facts}\nNothing was checked, no report written.", file=sys.stderr)
        return 1
    results = ResultsFile(choose_file(folder, facts, options.fresh))
    if options.failed:
        results.forget(KEY, failed_tests(results.read()))
    stages = chosen_stages(options.stage, results)
    seed = options.seed if options.seed is not None else _seed(results.read())
    results.session(facts | {"seed": seed, "stages": [stage.key for stage in stages]})
    adopt_orphans()
    order = Order(options.device, seed, options.within, options.quick)
    Runner(results, order).run(stages, lambda _: write_page(results))
    target = write_page(results)
    print(f"Wrote {target}.")
    result = results.read()
    left = [stage.key for stage in STAGES if needs_run(result.stage(stage.key))]
    if left:
        print(f"Left for the next call: {', '.join(left)}.")
    return 1 if left or any(result.stage(stage.key).failures for stage in STAGES) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make gpu-check ARGS=…", description=__doc__)
    keys = [stage.key for stage in STAGES]
    parser.add_argument("--stage", action="append", choices=keys, help="run this stage anew")
    parser.add_argument("--failed", action="store_true", help="run the tests that failed anew")
    parser.add_argument("--within", type=float, default=budget_s(), metavar="S", help="the time of this call")
    parser.add_argument("--seed", type=int, help="of what is drawn (default: a new one per report)")
    parser.add_argument("--fresh", action="store_true", help="begin a new report")
    parser.add_argument("--device", default="cuda", help="cpu tries out the stages that need no GPU")
    parser.add_argument("--quick", action="store_true", help="few and small cases, to try out the stages")
    parser.add_argument("--page", action="store_true", help="only write the pages anew")
    parser.add_argument("--needs", action="store_true", help="list the packages that this needs")
    return parser


def chosen_stages(keys: Sequence[str] | None, results: ResultsFile) -> list[Stage]:
    """The stages with these keys, their earlier results forgotten; without keys, those not finished."""
    if keys is None:
        result = results.read()
        return [stage for stage in STAGES if needs_run(result.stage(stage.key))]
    for key in keys:
        if not needs_run(results.read().stage(key)):
            results.restart(key)
    return [stage for stage in STAGES if stage.key in keys]


def failed_tests(result: Results) -> list[str]:
    """The tests that failed or ended their process."""
    stage = result.stage(KEY)
    return [item for item, row in stage.values.items() if row["outcome"] == "failed"] + list(stage.failures)


def choose_file(folder: Path, facts: dict[str, Any], is_fresh: bool) -> Path:
    """The newest results of this card and this torch; those of a new report where there are none, where all
    stages have finished on an earlier day, and with `is_fresh`."""
    card, today = slug(facts["card"]), f"{datetime.now(UTC):%Y%m%d}"
    new = folder / f"{card}-{today}.jsonl"
    number = 2
    while is_fresh and new.exists():
        new, number = folder / f"{card}-{today}-{number}.jsonl", number + 1
    if is_fresh:
        return new
    paths = sorted(folder.glob(f"{card}-*.jsonl"), key=lambda path: path.stat().st_mtime)
    for path in reversed(paths):
        result = ResultsFile(path).read()
        is_open = any(needs_run(result.stage(stage.key)) for stage in STAGES)
        is_same = bool(result.sessions) and result.sessions[-1]["torch"] == facts["torch"]
        if is_same and (is_open or today in path.stem):
            return path
    return choose_file(folder, facts, True) if new.exists() else new


def slug(card: str) -> str:
    """The card's name for a file."""
    return re.sub(r"[^a-z0-9]+", "-", card.lower()).strip("-")


def write_page(results: ResultsFile) -> Path:
    """Write the page of these results beside them."""
    target = results.path.with_suffix(".md")
    target.write_text(page(results.read()), encoding="utf-8")
    return target


def _session_facts(selector: str) -> dict[str, Any] | str:
    """The facts of this machine, or why there are none."""
    command = [sys.executable, "-m", "tests.gpu.session", selector]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=_FACTS_S)
    if done.returncode == 0:
        facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return facts
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"The device {selector} could not be opened."


def _seed(result: Results) -> int:
    """The seed of the report so far, so that a continued stage draws the same cases; else a new one."""
    seeds = [session["seed"] for session in result.sessions if "seed" in session]
    return seeds[0] if seeds else random.SystemRandom().randrange(2**31)


if __name__ == "__main__":
    sys.exit(main())
