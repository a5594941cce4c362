"""The histogram of step times: its bars count whole steps, and so do the ticks beside them."""

from collections.abc import Sequence
from typing import Any

import pytest

from dashboard.charts import icicle, phases
from dashboard.charts.theme import PALETTES, RUNS, contrast
from harness.analysis.timing.phases import ClockTimes, Spread, StepPart, StepPartTime

_READABLE = 4.5
"""The least contrast of a text, by WCAG 2 (AA)."""

_MS = 1_000_000


def _histogram(steps_ms: Sequence[int]) -> dict[str, Any]:
    spread = Spread(p50=12e6, p95=14e6, p99=14e6, mean=12e6)
    return phases.distribution([step_ms * _MS for step_ms in steps_ms], spread, "r")


def test_a_bar_of_one_step_is_described_in_the_singular() -> None:
    (trace,) = _histogram([10, 12, 12, 14])["data"]
    described = [text.split(" of ")[0] for text in trace["customdata"] if not text.startswith("0 ")]
    assert described == ["1 step", "2 steps", "1 step"]


def test_the_ticks_of_few_steps_are_whole_numbers() -> None:
    assert _histogram([10, 12, 12, 14])["layout"]["yaxis"]["dtick"] == 1
    assert "dtick" not in _histogram([10, *[12] * 40, 14])["layout"]["yaxis"]


def test_step_times_of_half_a_minute_are_written_out() -> None:
    figure = _histogram([*range(30_000, 30_400), 90_000])
    assert figure["layout"]["xaxis"]["exponentformat"] == "none"
    assert figure["footer"] == "2 steps longer than 30,398.0 ms in the last bar."
    (trace,) = figure["data"]
    assert trace["customdata"][0].endswith(" of 30,000.0 to 30,006.6 ms")
    assert not any("e+" in text for text in trace["customdata"])


@pytest.mark.parametrize("theme", PALETTES)
def test_the_text_in_a_bar_can_be_read(theme: str) -> None:
    palette, spread = PALETTES[theme], Spread(p50=1e6, p95=1e6, p99=1e6, mean=1e6)
    parts = tuple(StepPartTime(part, spread, 0.1) for part in StepPart)
    times = ClockTimes(10, spread, parts)
    figure = phases.stacked([phases.ClockBar("GPU", times)], "r")
    assert len(figure["data"]) == len(StepPart)
    for trace in figure["data"]:
        ground, text = (trace[name]["color"].removeprefix("@") for name in ("marker", "insidetextfont"))
        assert contrast(palette[ground], palette[text]) >= _READABLE, trace["name"]


def test_the_labels_of_an_icicle_can_be_read() -> None:
    grounds = [icicle.shade(PALETTES["light"][name], level) for name in RUNS for level in range(4)]
    nodes = [icicle.Node(str(at), "", "", 1, "", "", color) for at, color in enumerate(grounds)]
    (trace,) = icicle.figure(nodes, "r", 100)["data"]
    pairs = zip(grounds, trace["textfont"]["color"], strict=True)
    assert min(contrast(*pair) for pair in pairs) >= _READABLE
