"""Runs everything that needs a CUDA device, and writes down what it measured: `make gpu-check`.

A test reports a figure with pytest's `record_property(name, value)`; the page lands in docs/gpu/.
"""

import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from harness.device.cuda_facts import cuda_facts
from harness.records import DeviceFacts

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "gpu"


class Outcome(NamedTuple):
    """One test: its name, how it ended, and the figures it recorded."""

    name: str
    outcome: str
    figures: list[tuple[str, object]]


class Collector:
    """A pytest plugin that keeps the outcome of every test."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the call's outcome, or a set-up that failed."""
        if report.when == "call" or (report.when == "setup" and not report.passed):
            self.outcomes.append(Outcome(report.nodeid, report.outcome, list(report.user_properties)))


def page(facts: DeviceFacts, outcomes: list[Outcome], arguments: list[str], when: datetime) -> str:
    """The report as Markdown."""
    passed = sum(outcome.outcome == "passed" for outcome in outcomes)
    lines = [
        f"# {facts.name}, {when:%Y-%m-%d}",
        "",
        f"Made by `make gpu-check{' ARGS=' + repr(' '.join(arguments)) if arguments else ''}`: "
        f"{passed} of {len(outcomes)} tests passed.",
        "",
        f"torch {torch.__version__}, CUDA {torch.version.cuda}, Python {platform.python_version()}, "
        f"{facts.multiprocessors} multiprocessors, {(facts.memory_bytes or 0) / 2**30:.1f} GiB.",
        "",
        "| test | outcome | measured |",
        "|---|---|---|",
    ]
    for outcome in outcomes:
        figures = "; ".join(f"{name}: {value}" for name, value in outcome.figures)
        lines.append(f"| {outcome.name.removeprefix('tests/')} | {outcome.outcome} | {figures} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Run the tests and write the page; 0 when all passed."""
    if not torch.cuda.is_available():
        print("torch sees no CUDA device here: nothing was checked, no report written.", file=sys.stderr)
        return 1
    collector = Collector()
    code = pytest.main(["-m", "gpu", "-p", "no:cacheprovider", "tests", *arguments], plugins=[collector])
    facts, when = cuda_facts(0), datetime.now(UTC)
    FOLDER.mkdir(parents=True, exist_ok=True)
    name = facts.name.lower().replace(" ", "-")
    target = FOLDER / f"{name}-{when:%Y%m%d}.md"
    target.write_text(page(facts, collector.outcomes, arguments, when), encoding="utf-8")
    print(f"Wrote {target.relative_to(ROOT)}.")
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
