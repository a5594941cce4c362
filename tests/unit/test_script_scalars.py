"""The numbers that a script logged, as the live chart reads and draws them."""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from dashboard.charts import scalars as panels
from dashboard.charts.markers import MOST_QUIET, dashes, marker_of
from dashboard.charts.scalars import Scalar
from dashboard.data.scalars import ScalarSeries, default_scalars, read_scalars
from dashboard.view_models.live import scalar_of
from harness.records.floats import encode_float
from harness.records.run import EventKind
from harness.records.script import ScalarRow
from harness.store.appender import LogAppender
from harness.store.reader import LogReader
from tests.store_factories import a_run, an_event


def _scalar(step: int, value: float, name: str = "accuracy") -> ScalarRow:
    return ScalarRow(step, name, step * 1_000, *encode_float(value))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.sqlite3"


def test_the_first_three_scalars_are_shown_and_the_loss_has_its_own_panel() -> None:
    assert default_scalars(["a", "b", "c", "d", "loss"]) == ["a", "b", "c"]
    assert default_scalars(["loss", "lr"]) == ["lr"]


def test_a_series_continued_while_the_run_grows_equals_one_read_at_once(path: Path) -> None:
    before: list[ScalarSeries] = []
    last = 0
    with LogAppender(path, a_run()) as appender:
        for first, last in ((1, 700), (701, 1_900), (1_901, 1_950), (1_951, 9_000), (9_001, 9_010)):
            appender.append(rows=[_scalar(step, math.sin(step)) for step in range(first, last + 1)])
            with LogReader(path) as log:
                before = read_scalars(log.script, ["accuracy"], 1, last, before)
    with LogReader(path) as log:
        (whole,) = read_scalars(log.script, ["accuracy"], 1, last)
    (continued,) = before
    assert [tuple(bucket[:5]) for bucket in continued.buckets] == [tuple(b[:5]) for b in whole.buckets]
    one, two = ([bucket.total or 0.0 for bucket in series.buckets] for series in (continued, whole))
    assert np.allclose(one, two)
    assert sum(bucket.values for bucket in continued.buckets) == 9_010
    assert len(continued.buckets) <= 481


def test_a_value_that_arrives_some_steps_late_is_read_too(path: Path) -> None:
    with LogAppender(path, a_run()) as appender:
        appender.append(rows=[_scalar(step, 1.0) for step in range(1, 100) if step != 90])
        with LogReader(path) as log:
            early = read_scalars(log.script, ["accuracy"], 1, 99)
        appender.append(rows=[_scalar(90, 7.0), _scalar(100, 1.0)])
        with LogReader(path) as log:
            (late,) = read_scalars(log.script, ["accuracy"], 1, 100, early)
    assert [bucket.high for bucket in late.buckets if bucket.first_step == 90] == [7.0]
    assert len(late.buckets) == 100


def test_a_spike_in_a_long_run_is_drawn(path: Path) -> None:
    with LogAppender(path, a_run()) as appender:
        appender.append(rows=[_scalar(step, 50.0 if step == 4_321 else 1.0) for step in range(1, 10_001)])
    with LogReader(path) as log:
        (series,) = read_scalars(log.script, ["accuracy"], 1, 10_000)
    made = panels.traces([scalar_of(series)])
    highest = next(trace for trace in made if trace["name"] == "accuracy max")
    assert max(highest["y"]) == 50.0


def test_what_is_not_finite_is_a_gap_and_is_counted(path: Path) -> None:
    with LogAppender(path, a_run()) as appender:
        appender.append(rows=[_scalar(1, 1.0), _scalar(2, math.nan), _scalar(3, 2.0)])
    with LogReader(path) as log:
        (series,) = read_scalars(log.script, ["accuracy"], 1, 3)
    scalar = scalar_of(series)
    assert np.isnan(scalar.mean[1])
    (name,) = panels.notes([scalar], 0.3)
    assert name["text"] == "accuracy (1 value not finite)"


def test_panels_of_scalars_do_not_overlap_and_names_are_text() -> None:
    one = np.array([1.0, 2.0])
    some = [Scalar(f"<b>{at}</b>&", one, one, one, one, 0) for at in range(3)]
    part = panels.share(some, 340)
    domains = [axis["domain"] for axis in panels.axes(some, part).values()]
    assert part > domains[0][1]
    for upper, lower in pairwise(domains):
        assert upper[0] >= lower[1]
    assert domains[-1][0] == pytest.approx(0.0)
    assert panels.notes(some, part)[0]["text"] == "&lt;b>0&lt;/b>&amp;"


def test_the_time_of_a_phase_has_its_unit() -> None:
    one = np.array([1.0, 2.0])
    some = [Scalar(name, one, one, one, one, 0) for name in ("phase/augment", "phases")]
    assert [name["text"] for name in panels.notes(some, 0.5)] == ["phase/augment, ms", "phases"]


def test_a_scalar_without_a_value_in_the_range_says_so(path: Path) -> None:
    with LogAppender(path, a_run()) as appender:
        appender.append(rows=[_scalar(1, 1.0)])
    with LogReader(path) as log:
        (series,) = read_scalars(log.script, ["accuracy"], 5, 9)
    assert panels.notes([scalar_of(series)], 0.3)[0]["text"] == "accuracy (n/a: no value in these steps)"


def test_a_constant_has_a_range_around_its_value() -> None:
    one = np.array([1.0, 2.0])
    rate = np.array([0.01, 0.01 * (1 + 1e-15)])
    (axis,) = panels.axes([Scalar("lr", one, rate, rate, rate, 0)], 0.3).values()
    assert axis["exponentformat"] == "e"  # 1e-4, where plotly.js would write 100μ.
    assert axis["range"] == pytest.approx([0.008, 0.012])
    (axis,) = panels.axes([Scalar("lr", one, one, one, one, 0)], 0.3).values()
    assert "range" not in axis


def test_many_notes_of_a_script_have_labels_and_no_lines() -> None:
    notes = [an_event(step=step)._replace(kind=EventKind.NOTE) for step in range(1, 101)]
    made = [marker_of(event) for event in notes]
    assert len(dashes(made[:MOST_QUIET])) == MOST_QUIET
    assert dashes(made) == []
    error = marker_of(an_event(step=7)._replace(kind=EventKind.OOM))
    assert [line["x0"] for line in dashes([*made, error])] == [7]
