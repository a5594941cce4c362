"""The histogram of step times: its bars count whole steps, and so do the ticks beside them."""

from collections.abc import Sequence
from typing import Any

from dashboard.charts import phases
from harness.analysis.timing.phases import Spread

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
