"""Writes docs/observed-change.md from what was measured."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from tests.bench.effect_outcomes import Outcome
from tests.bench.effect_runs import SHARES
from tests.bench.figures import HEADER, Figure, machine, row

PAGE = Path(__file__).parents[2] / "docs" / "observed-change.md"
_BEGIN, _END = "<!-- table -->\n", "<!-- end of table -->\n"


def write(figures: Sequence[Figure], outcomes: Sequence[Outcome], command: str) -> None:
    """Put the tables into the page, with the command that measured."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    tables = "\n".join(_tables(figures, outcomes, command)) + "\n"
    PAGE.write_text(before + _BEGIN + tables + _END + after, encoding="utf-8")


def _tables(figures: Sequence[Figure], outcomes: Sequence[Outcome], command: str) -> Iterator[str]:
    yield f"`{command}`, {time.strftime('%Y-%m-%d')},"
    yield f"{machine()} at the end.\n"
    yield HEADER
    yield from map(row, figures)
    yield ""
    shares = " | ".join(f"by {share:.0%}: found" for share in SHARES)
    yield f"| run | load | of nothing: called | {shares} | truth held | wrong sign | resolution |"
    yield f"|---|---:|---:|{'---:|' * len(SHARES)}---:|---:|---:|"
    for plan in dict.fromkeys(outcome.name for outcome in outcomes):
        yield _run([outcome for outcome in outcomes if outcome.name == plan])


def _run(outcomes: Sequence[Outcome]) -> str:
    nothing = [outcome for outcome in outcomes if outcome.intended == 0]
    cells = [outcomes[0].name, f"{outcomes[0].load:.1f}", _count(nothing, "is_called")]
    cells += [
        _count([outcome for outcome in outcomes if outcome.is_of(share)], "is_detected") for share in SHARES
    ]
    cells += [_count(outcomes, "is_covered"), _count(outcomes, "has_wrong_sign")]
    cells.append(f"±{median(outcome.resolution_pct for outcome in outcomes):.1f} %")
    return "| " + " | ".join(cells) + " |"


def _count(outcomes: Sequence[Outcome], kind: str) -> str:
    return f"{sum(getattr(outcome, kind) for outcome in outcomes)} of {len(outcomes)}"
