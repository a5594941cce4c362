"""The chart of samples/s against peak memory."""

from dashboard.charts.tune import front
from harness.tune.results import FigureEstimate, RankedRow

MIB = 2.0**20


def a_row(title: str, rate: float, peak_mib: float, *, is_winner: bool = False) -> RankedRow:
    samples_per_s, peak_bytes = (FigureEstimate(one, one, one) for one in (rate, peak_mib * MIB))
    return RankedRow(title, {}, samples_per_s, None, peak_bytes, "faster", is_winner, is_on_front=True)


def test_of_points_in_one_place_one_has_a_label_and_the_best_always() -> None:
    rows = [a_row("a", 100.0, 5.0), a_row("b", 290.0, 9.0), a_row("c", 300.0, 9.5, is_winner=True)]
    figure = front(rows, "r")
    assert figure is not None
    (trace,) = figure["data"]
    assert trace["text"] == [" a ", "", " best "]


def test_points_without_extent_are_drawn() -> None:
    figure = front([a_row("a", 100.0, 5.0), a_row("b", 100.0, 5.0)], "r")
    assert figure is not None
    assert figure["data"][0]["text"] == [" a ", ""]


def test_a_label_is_on_the_side_of_the_middle_of_the_chart() -> None:
    beside = a_row("c", 90.0, 9.0)._replace(is_on_front=False)
    figure = front([a_row("a", 100.0, 5.0, is_winner=True), beside], "r")
    assert figure is not None
    assert figure["data"][0]["textposition"] == ["middle right"]
    figure = front([a_row("a", 100.0, 5.0), a_row("b", 300.0, 9.0, is_winner=True)], "r")
    assert figure is not None
    assert figure["data"][0]["textposition"] == ["middle right", "middle left"]
