"""Figures: what was measured, how far it spread, and what it should be; as a table in Markdown."""

import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from harness.device.cpu.facts import cpu_name


class Figure(NamedTuple):
    """One thing that was measured several times. `limit` is the most (`is_least`: the least) that its median
    should be; None where it only stands for information."""

    name: str
    values: Sequence[float]
    unit: str
    limit: float | None = None
    is_least: bool = False
    note: str = ""
    """Why there are no values."""

    @property
    def median(self) -> float:
        """The middle of the values."""
        return statistics.median(self.values)

    @property
    def is_met(self) -> bool | None:
        """Return whether the median keeps within the limit; None without one."""
        if self.limit is None or not self.values:
            return None
        return self.median >= self.limit if self.is_least else self.median <= self.limit


HEADER = "| figure | median | spread (quartiles) | target | |\n|---|---:|---:|---:|---|"


def row(figure: Figure) -> str:
    """The figure's row in the table."""
    if not figure.values:
        return f"| {figure.name} | n/a | {figure.note} | | |"
    met = {None: "", True: "met", False: "**missed**"}[figure.is_met]
    target = (
        "" if figure.limit is None else f"{'≥' if figure.is_least else '≤'} {figure.limit:,g} {figure.unit}"
    )
    median = f"{_number(figure.median)} {figure.unit}"
    return f"| {figure.name} | {median} | {_spread(figure.values)} | {target} | {met} |"


def _spread(values: Sequence[float]) -> str:
    if len(values) < 2:
        return "once"
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{_number(low)} to {_number(high)} (n={len(values)})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def machine() -> str:
    """One line on where this was measured, and how busy it was with other things."""
    cores = os.cpu_count()
    load = os.getloadavg()[0]
    return f"{cpu_name()}, {cores} cores, Python {platform.python_version()}, load {load:.1f}"


def all_met(figures: Iterable[Figure]) -> bool:
    """Return whether no figure misses its target."""
    return all(figure.is_met is not False for figure in figures)
