"""The report as one HTML file: charts, sections, style, script and plotly.js; it loads nothing."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dashboard.charts import compare
from dashboard.charts.compare import Compared, compared
from dashboard.charts.theme import PALETTES
from dashboard.report import sections
from dashboard.report.markup import paragraph, section, table, text
from harness import __version__, words
from harness.analysis.compare.facts import FIGURES
from harness.analysis.compare.pairs import common_figures, compare_pair, settings_that_differ
from harness.supervisor.reporting import ReportFacts

_STATIC = Path(__file__).parents[1] / "static"
_PLOTLY = "plotly-basic-4.1.1.min.js"
_DIGITS = 6
# Nothing is loaded, whatever a name of a run or a scalar contains.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"


def render(reports: Sequence[ReportFacts], now_unix_ns: int) -> str:
    """Return the report of one run, or of a comparison, the first run of which is the baseline."""
    runs = compare.distinct([_compared(report) for report in reports])
    title = " and ".join(run.name for run in runs) if len(runs) < 3 else f"{len(runs)} runs compared"
    figures: list[Mapping[str, Any]] = []
    charts = _charts(runs, figures)
    if len(runs) == 1:
        body = [_head(reports[0]), charts, *sections.of_run(reports[0])]
    else:
        body = [_comparison(runs), charts, *map(_details, reports, runs)]
    footer = f"Stepscope {__version__}, {words.moment(now_unix_ns)}. Times are local."
    return _page(title, "".join(body), footer, figures)


def _details(report: ReportFacts, run: Compared) -> str:
    inside = "".join((_head(report), *sections.of_run(report)))
    return f"<details open><summary>{text(run.name)}</summary>{inside}</details>"


def _compared(report: ReportFacts) -> Compared:
    series = report.curves
    if series is None:
        return compared(report.facts, (), 1, ())
    return compared(report.facts, series.columns, series.bucket_size, series.rows, series.unobserved)


def _head(report: ReportFacts) -> str:
    state = report.facts.state + (", simulated" if report.facts.is_simulated else "")
    bound = [] if report.bound is None else [paragraph(report.bound)]
    return section(
        f"Run: {state}", paragraph(report.summary.status.message), *bound, sections.run_facts(report)
    )


def _comparison(runs: Sequence[Compared]) -> str:
    facts = [run.facts for run in runs]
    pairs = [compare_pair(facts[0], other) for other in facts[1:]]
    if common_figures(facts):
        verdicts = "".join(paragraph(pair.verdict, "verdict") for pair in pairs)
    else:
        verdicts = paragraph("These runs have no figure in common.", "verdict")
    rows = [
        [
            figure.label,
            figure.text(figure.read(facts[0])),
            *(
                f"{figure.text(change.after)}"
                + (f" ({words.relative(change.ratio - 1)})" if change.ratio is not None else "")
                for change in (pair.figure(figure.name) for pair in pairs)
            ),
        ]
        for figure in FIGURES.values()
        if any(figure.read(run) is not None for run in facts)
    ]
    names = [run.name for run in runs]
    differing = settings_that_differ(facts)
    settings = (
        table(("Setting", *names), [(row.label, *row.values) for row in differing])
        if differing
        else paragraph("The recorded settings of these runs are the same.", "muted")
    )
    figures = table(("Figure", *(f"{name}>" for name in names)), rows)
    return section("Comparison", verdicts, figures) + section("Settings that differ", settings)


def _charts(runs: Sequence[Compared], figures: list[Mapping[str, Any]]) -> str:
    """Return the places of the charts, and append the charts to `figures`."""
    if not any(len(run.steps.step) for run in runs):
        return section("Charts", paragraph("n/a: there is no step in the log.", "muted"))
    charts = (
        ("Step time, memory and loss", compare.figure(runs)),
        ("Step times", compare.distribution(runs)),
        ("Phases", compare.phase_bars(runs)),
        ("Memory breakdowns", compare.memory_bars(runs) if len(runs) > 1 else None),
        ("Kinds of work", compare.kind_bars(runs)),
    )
    parts = []
    for title, figure in charts:
        if figure is None:
            continue
        figures.append(figure)
        height = figure["height"]
        parts.append(
            section(
                title,
                f'<div class="chart" role="img" aria-label="{text(figure["label"])}" '
                f'style="min-height:{height}px"></div>',
                paragraph(figure["footer"], "muted") if figure["footer"] else "",
            )
        )
    notes = [run.facts.change_note for run in runs if run.facts.change_note is not None]
    return "".join([*parts, *(paragraph(note, "muted") for note in notes)])


def _page(title: str, body: str, footer: str, figures: Sequence[Mapping[str, Any]]) -> str:
    data = json.dumps(
        {"figures": _plain(figures), "palettes": PALETTES}, separators=(",", ":"), allow_nan=False
    ).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{text(title)}</title>
<style>{_static("report.css")}</style>
</head>
<body>
<header><h1>{text(title)}</h1></header>
<noscript><p>The charts need JavaScript.</p></noscript>
<main>{body}</main>
<footer>{text(footer)}</footer>
<script type="application/json" id="data">{data}</script>
<script>{_static(_PLOTLY)}</script>
<script>{_static("report.js")}</script>
</body>
</html>
"""


def _static(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")


def _plain(value: Any) -> Any:
    """Return a figure as JSON has it: arrays as lists, NaN as null."""
    if isinstance(value, np.ndarray):
        return [_number(float(item)) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, float | np.floating):
        return _number(float(value))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value


def _number(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) and abs(value) < 1e5 else _large(value)


def _large(value: float) -> float | None:
    return round(value, 1) if math.isfinite(value) else None
