"""Gates: limits on a figure of a run, absolute or against the baseline, as "step_time>+5%"."""

import math
import re
from typing import NamedTuple

from harness import words
from harness.analysis.compare.facts import FIGURES, NamedFigure, Unit
from harness.analysis.compare.pairs import RunPair
from harness.errors import StepscopeError, UsageError

_FORM = re.compile(
    r"\s*(?P<name>[a-z0-9_]+)\s*(?P<compare>>=|<=|>|<)\s*(?P<sign>[+-]?)(?P<number>\d+(\.\d+)?([eE][+-]?\d+)?)"
    r"\s*(?P<unit>[A-Za-z%µ/]*)\s*"
)
_EXAMPLES = "'step_time>+5%', 'peak_allocated>+200MiB' or 'samples_per_s<1000'"
_FACTORS: dict[Unit, dict[str, float]] = {
    Unit.NANOSECONDS: {"ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9},
    Unit.SECONDS: {"s": 1, "min": 60, "h": 3600},
    Unit.BYTES: {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30},
    Unit.PER_SECOND: {"": 1, "/s": 1},
    Unit.SHARE: {"": 1},
    Unit.COUNT: {"": 1},
    Unit.NONE: {"": 1},
}


class Gate(NamedTuple):
    """A limit that fails a comparison. `limit` is a share where `is_share`, else in the figure's base unit;
    `is_change`: of the change against the baseline."""

    text: str
    figure: NamedFigure
    comparison: str
    limit: float
    is_change: bool
    is_share: bool


class GateResult(NamedTuple):
    """The result of one gate for one run; `sentence` says the figures."""

    gate: str
    run_id: str
    has_failed: bool
    sentence: str


def parse_gate(text: str) -> Gate:
    """Parse a gate. Raises UsageError."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is not a gate; write a figure and its limit, such as {_EXAMPLES}.")
    figure = FIGURES.get(match["name"])
    if figure is None:
        raise UsageError(f"There is no figure {match['name']!r}; a gate takes one of {', '.join(FIGURES)}.")
    sign, unit, number = match["sign"], match["unit"], float(match["number"])
    limit = -number if sign == "-" else number
    if (unit == "%" and figure.unit is not Unit.SHARE) or (unit == "%" and sign):
        if not sign and match["compare"].startswith("<"):
            raise UsageError(f"{text!r} has no sign; write {match['name']}<-{match['number']}%.")
        return Gate(text, figure, match["compare"], limit / 100, True, True)
    if unit == "%":
        return Gate(text, figure, match["compare"], limit / 100, False, False)
    factors = _FACTORS[figure.unit]
    if unit not in factors:
        allowed = ", ".join(name for name in (*factors, "%") if name)
        raise UsageError(f"{text!r} needs a unit of {figure.name}: {allowed}.")
    return Gate(text, figure, match["compare"], limit * factors[unit], bool(sign), False)


def judge(gate: Gate, pair: RunPair, names: tuple[str, str]) -> GateResult:
    """Judge the gate on a pair of runs, whose `names` are in their order. A NaN or infinite figure fails.

    Raises StepscopeError if the figure is n/a where the gate needs it.
    """
    row, spec = pair.figure(gate.figure.name), gate.figure
    for value, name in zip((row.before, row.after), names, strict=True):
        if value is None:
            raise StepscopeError(
                f"The gate {gate.text!r} cannot be judged: {spec.label} is n/a in {name!r}; remove the "
                "gate, or compare runs that measured it."
            )
    assert row.before is not None
    assert row.after is not None
    figures = f"{spec.label} {spec.text(row.before)} → {spec.text(row.after)}"
    if not math.isfinite(row.after):
        return GateResult(gate.text, pair.other, True, f"{names[1]}: {figures} is not a number to judge.")
    value = row.after
    if gate.is_change:
        if not math.isfinite(row.before) or (gate.is_share and row.before == 0):
            raise StepscopeError(
                f"The gate {gate.text!r} cannot be judged: {spec.label} of {names[0]!r} is "
                f"{spec.text(row.before)}; choose another baseline."
            )
        value = row.after / row.before - 1 if gate.is_share else row.after - row.before
        relative = row.ratio
        figures += "" if relative is None else f" ({words.relative(relative - 1)})"
    has_failed = _COMPARISONS[gate.comparison](value, gate.limit)
    verdict = "failed" if has_failed else "passed"
    return GateResult(gate.text, pair.other, has_failed, f"{verdict}: {gate.text} for {names[1]}, {figures}.")


_COMPARISONS = {
    ">": lambda value, limit: value > limit,
    ">=": lambda value, limit: value >= limit,
    "<": lambda value, limit: value < limit,
    "<=": lambda value, limit: value <= limit,
}
