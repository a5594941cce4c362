"""The heat map of ranks and steps."""

from typing import Any

import numpy as np

from dashboard.charts.ranks import heat_map
from harness.analysis.ranks.stragglers import compare_ranks
from tests.figure_schema import validate_figure
from tests.rank_steps import MS, steps_of_ranks


def _chart(size: int, **late: Any) -> dict[str, Any]:
    comparison = compare_ranks(steps_of_ranks(size, steps=100, **late))
    assert comparison is not None
    chart = heat_map(comparison, "a")
    validate_figure(chart)
    return chart


def test_each_rank_has_a_row_over_all_compared_steps() -> None:
    chart = _chart(4)
    assert [trace["name"] for trace in chart["data"]] == [f"rank\u00a0{rank}" for rank in range(4)]
    for trace in chart["data"]:
        ends = np.add(trace["base"], trace["x"])
        assert trace["base"][0] == 1
        assert ends[-1] == 101
        assert list(trace["base"][1:]) == list(ends[:-1])


def test_the_late_rank_is_colored_by_how_late_it_is_from_where_it_began() -> None:
    chart = _chart(3, rank=1, column="data_wait_ns", by_ns=3 * MS, since=51)
    colors = np.array([trace["marker"]["color"] for trace in chart["data"]])
    assert np.allclose(colors[1, 25:], 3, atol=0.2)
    assert colors[[0, 2]].max() < 0.3
    assert colors[1, :25].max() < 0.3
    assert "rank\u00a01, steps 51 to 52: " in chart["data"][1]["hovertemplate"][25]


def test_noise_has_a_weak_color() -> None:
    scale = _chart(2)["data"][0]["marker"]
    assert max(scale["color"]) < 0.2 * scale["cmax"]
