"""Charts from rows: gaps stay gaps, missing is never zero, spikes survive, payloads are small."""

import json
from typing import Any

import numpy as np
import pytest

from dashboard import buckets
from dashboard.buckets import BucketTable
from dashboard.charts import compare, live
from dashboard.charts.axes import line
from dashboard.charts.scalars import RunScalar, overlaid
from dashboard.charts.theme import DARK, LIGHT, PALETTES, RUNS
from dashboard.wire import pack, unpack
from harness.analysis.compare.curves import CurveAxis
from harness.analysis.compare.facts import ProfileKinds
from harness.analysis.profiles import ProfilePart
from harness.records.profile import OperatorKind
from harness.records.run import EventKind, EventRow, Severity
from tests.compare_factories import a_compared, some_run
from tests.figure_schema import validate_figure

COLUMNS = ("bucket", "size", "rows", "step_ns_min", "step_ns_max", "step_ns_sum", "step_ns_count")
MEMORY = ("allocated_bytes", "reserved_bytes", "peak_allocated_bytes")
GIB = 2**30

MIB = 2**20


def a_frame(count: int = 100, **values: float | list[float]) -> BucketTable:
    """Buckets of one step with the given means, which are their extremes too."""
    step = np.arange(count, dtype=np.float64)
    fields = {"step_ns": 10e6, "data_wait_ns": 1e6, "loss": 1.0} | values
    bands = {}
    for name, value in fields.items():
        array = np.full(count, 0.0) + np.array(value, dtype=np.float64)
        bands[name] = buckets.Band(array, array, array)
    return BucketTable(step, 1, bands, count)


def a_live(steps: BucketTable, **more: Any) -> live.Live:
    fields: dict[str, Any] = {
        "steps": steps,
        "device": buckets.EMPTY,
        "events": [],
        "transitions": [],
        "limit": None,
        "predicted": None,
        "device_clock": False,
        "memory_names": ("reserved", "allocated"),
        "util_name": "GPU util",
        "missing": {},
        "phases": False,
        "revision": "r",
        "footer": "f",
        "last_step": 99,
    }
    return live.Live(**fields | more)


def an_event(step: int, kind: EventKind, label: str) -> EventRow:
    severity = Severity.ERROR if kind in (EventKind.OOM, EventKind.ERROR) else Severity.INFO
    return EventRow(0, step, kind, severity, label, f"{label}.", "{}", None)


def named(figure: dict[str, Any], name: str) -> dict[str, Any]:
    return next(trace for trace in figure["data"] if trace["name"] == name)


def test_a_figure_survives_the_wire() -> None:
    head = {"a": np.array([1.5, np.nan], dtype=np.float32), "b": [{"c": np.array([2.0**40])}], "d": "text"}
    result = unpack(pack(head))
    np.testing.assert_array_equal(result["a"], head["a"])
    assert result["b"][0]["c"][0] == 2.0**40
    assert result["d"] == "text"


def test_an_array_used_twice_travels_once() -> None:
    array = np.zeros(1000)
    assert len(pack({"x": array, "y": array})) < 1.1 * len(pack({"x": array}))


def test_a_missing_bucket_becomes_a_gap() -> None:
    rows = [(0, 4, 4, 1, 2, 6, 4), (4, 4, 4, 1, 2, 6, 4), (12, 4, 4, 1, 2, 6, 4)]
    frame = buckets.of_steps(COLUMNS, 4, rows)
    np.testing.assert_array_equal(frame.step, [1.5, 5.5, 8.0, 13.5])
    assert np.isnan(frame.band("step_ns").mean[2])
    assert frame.buckets == 3


def test_a_gap_is_found_by_the_size_of_the_bucket_before_it() -> None:
    rows = [(0, 4, 4, 1, 2, 6, 4), (4, 4, 4, 1, 2, 6, 4), (8, 2, 2, 1, 2, 3, 2), (12, 2, 2, 1, 2, 3, 2)]
    frame = buckets.of_steps(COLUMNS, 4, rows)
    np.testing.assert_array_equal(frame.step, [1.5, 5.5, 8.5, 10.0, 12.5])
    assert np.flatnonzero(np.isnan(frame.band("step_ns").mean)).tolist() == [3]


def test_steps_that_nobody_observed_do_not_break_the_line() -> None:
    rows = [(step, 1, 1, 1, 1, 1, 1) for step in range(1, 41) if step not in (7, 8, 9, 20)]
    frame = buckets.of_steps(COLUMNS, 1, rows, [(7, 9)])
    assert frame.step.tolist() == [*range(1, 7), *range(10, 20), 20, *range(21, 41)]
    assert np.flatnonzero(np.isnan(frame.band("step_ns").mean)).tolist() == [16]


def test_only_what_lies_wholly_in_an_unobserved_block_is_expected_to_be_missing() -> None:
    rows = [(step, 1, 1, 1, 1, 1, 1) for step in range(1, 41) if step not in (7, 8, 9, 10)]
    frame = buckets.of_steps(COLUMNS, 1, rows, [(7, 9)])
    assert np.isnan(frame.band("step_ns").mean).sum() == 1


def test_what_was_not_measured_is_nan_and_not_zero() -> None:
    frame = buckets.of_steps(COLUMNS, 1, [(0, 1, 1, None, None, None, 0)])
    assert np.isnan(frame.band("step_ns").mean).all()
    assert frame.band("step_ns").is_empty
    assert frame.band("loss").is_empty


def test_a_bucket_keeps_its_spike() -> None:
    frame = buckets.of_steps(COLUMNS, 8, [(0, 8, 8, 1e6, 500e6, 508e6, 8)])
    figure = live.figure(a_live(frame))
    assert named(figure, "step max")["y"][0] == pytest.approx(500)


def test_a_single_loss_is_a_point_on_an_axis_around_it() -> None:
    figure = live.figure(a_live(a_frame(3, loss=[4.96e28, np.nan, np.nan])))
    (loss,) = [trace for trace in figure["data"] if trace["name"] == "loss"]
    assert loss["mode"] == "markers"
    assert figure["layout"]["yaxis4"]["range"] == pytest.approx([0.8 * 4.96e28, 1.2 * 4.96e28])
    assert "range" not in live.figure(a_live(a_frame(2, loss=[1.0, 2.0])))["layout"]["yaxis4"]


def test_no_rows_are_an_empty_frame() -> None:
    assert len(buckets.of_steps(COLUMNS, 1, []).step) == len(buckets.of_samples(COLUMNS, 1, []).step) == 0


def test_memory_is_drawn_in_gib_with_its_limit_as_a_red_line() -> None:
    frame = a_frame(allocated_bytes=10 * GIB, reserved_bytes=20 * GIB, peak_allocated_bytes=15 * GIB)
    figure = live.figure(a_live(frame, limit=live.MemoryLimit(24 * GIB, "cap")))
    assert named(figure, "reserved")["y"][0] == pytest.approx(20)
    assert figure["layout"]["yaxis"]["title"]["text"] == "memory, GiB"
    red = [shape for shape in figure["layout"]["shapes"] if shape["line"].get("color") == "@bad"]
    assert [shape["y0"] for shape in red] == [24]


def test_a_limit_far_above_is_noted_as_text() -> None:
    frame = a_frame(allocated_bytes=GIB, peak_allocated_bytes=GIB)
    figure = live.figure(a_live(frame, limit=live.MemoryLimit(141 * GIB, "device memory")))
    assert not figure["layout"]["shapes"]
    assert any("device memory 141 GiB" in note["text"] for note in figure["layout"]["annotations"])


def test_a_process_that_dwarfs_its_tensors_is_noted_as_text() -> None:
    frame = a_frame(allocated_bytes=2**20, peak_allocated_bytes=2**21, reserved_bytes=500 * 2**20)
    figure = live.figure(a_live(frame))
    assert named(figure, "reserved")["visible"] == "legendonly"
    assert figure["layout"]["yaxis"]["title"]["text"] == "memory, MiB"


def test_the_line_joins_readings_of_memory_that_lie_near_each_other() -> None:
    allocated = [float(GIB)] * 20
    allocated[4] = allocated[5] = np.nan
    figure = live.figure(a_live(a_frame(20, allocated_bytes=allocated)))
    drawn = named(figure, "allocated")
    assert drawn["x"].tolist() == [step for step in range(20) if step not in (4, 5)]
    assert np.isfinite(drawn["y"]).all()


@pytest.mark.parametrize("unread", [range(4, 9), range(2), range(18, 20)])
def test_the_line_breaks_where_memory_was_not_read_for_long_or_not_yet(unread: range) -> None:
    allocated = [np.nan if step in unread else float(GIB) for step in range(20)]
    figure = live.figure(a_live(a_frame(20, allocated_bytes=allocated)))
    area = next(trace for trace in figure["data"] if trace.get("fill") == "tozeroy")
    assert area["hoverinfo"] == "skip"
    assert [area["y"][step] for step in unread] == [0] * len(unread)
    assert np.isnan(named(figure, "allocated")["y"][list(unread)]).all()


def test_the_line_breaks_where_buckets_are_missing_from_the_log() -> None:
    rows = [(step, 1, 1, 1, 1, 1, 1) for step in range(40) if step != 7]
    frame = buckets.of_steps(COLUMNS, 1, rows)
    x, y = buckets.joined(frame, frame.band("step_ns").mean)
    assert np.flatnonzero(np.isnan(y)).tolist() == [7]
    assert len(x) == 40


def test_events_are_lines_and_markers_and_states_are_not() -> None:
    events = [
        an_event(10, EventKind.SETTING, "batch 48"),
        an_event(20, EventKind.STATE, "running"),
        an_event(30, EventKind.OOM, "out of memory"),
        an_event(31, EventKind.ERROR, "failed"),
    ]
    figure = live.figure(a_live(a_frame(), events=events))
    assert [(marker["label"], marker["tone"]) for marker in figure["markers"]] == [
        ("batch 48", "plain"),
        ("out of memory", "bad"),
        ("failed", "bad"),
    ]
    assert len(figure["layout"]["shapes"]) == 3


def test_an_event_after_the_last_step_is_within_the_drawn_extent() -> None:
    figure = live.figure(a_live(a_frame(), events=[an_event(100, EventKind.OOM, "out of memory")]))
    assert figure["extent"] == [0.0, 100.0]


def test_transition_steps_are_shaded() -> None:
    figure = live.figure(a_live(a_frame(), transitions=[(10, 14)]))
    (shade,) = figure["layout"]["shapes"]
    assert (shade["x0"], shade["x1"], shade["fillcolor"]) == (9.5, 14.5, "@shade")


def test_a_panel_without_data_says_why() -> None:
    figure = live.figure(a_live(a_frame(), missing={"util": "NVML is not available"}))
    assert "n/a: NVML is not available" in [note["text"] for note in figure["layout"]["annotations"]]
    assert not [trace for trace in figure["data"] if trace["yaxis"] == "y3"]


def test_the_steps_stay_below_the_panels_where_the_lowest_one_has_no_data() -> None:
    axis = live.figure(a_live(a_frame(loss=np.nan), missing={"loss": "no loss"}))["layout"]["xaxis"]
    assert (axis["anchor"], axis["position"]) == ("free", 0)


def test_an_axis_writes_30_000_steps_or_milliseconds_in_full() -> None:
    steps = a_frame(step_ns=30e9)
    for figure in (live.figure(a_live(steps)), compare.figure([a_compared("a", steps)])):
        for name in ("xaxis", "yaxis", "yaxis2"):
            axis = figure["layout"][name]
            assert (axis["exponentformat"], axis["separatethousands"]) == ("none", True)


@pytest.mark.parametrize(("count", "ticks"), [(3, 1), (100, None)])
def test_between_two_of_a_few_steps_there_is_no_tick(count: int, ticks: int | None) -> None:
    assert live.figure(a_live(a_frame(count)))["layout"]["xaxis"].get("dtick") == ticks
    runs = [a_compared("a", a_frame(count))]
    assert compare.figure(runs)["layout"]["xaxis"].get("dtick") == ticks
    assert "dtick" not in compare.figure(runs, CurveAxis.TIME)["layout"]["xaxis"]
    x = np.arange(1.0, count + 1)
    figure = overlaid([RunScalar("loss", "a", 0, x, x)], CurveAxis.STEP, "a")
    assert figure["layout"]["xaxis"].get("dtick") == ticks


@pytest.mark.parametrize("phases", [False, True])
def test_without_a_loader_no_data_wait_is_drawn(phases: bool) -> None:
    names = [
        [trace["name"] for trace in live.figure(a_live(a_frame(data_wait_ns=wait_ns), phases=phases))["data"]]
        for wait_ns in (0.0, 1e6)
    ]
    assert ["data wait" in of_one for of_one in names] == [False, True]


def test_a_phase_that_nothing_measured_is_not_drawn() -> None:
    figure = live.figure(a_live(a_frame(forward_ns=3e6, h2d_ns=0.0, optimizer_ns=0.0), phases=True))
    stacked = [trace["name"] for trace in figure["data"] if trace.get("stackgroup") == "phases"]
    assert stacked == ["data wait", "forward", "rest"]


def test_phases_add_up_to_the_step() -> None:
    frame = a_frame(h2d_ns=1e6, forward_ns=3e6, backward_ns=4e6, optimizer_ns=0.5e6)
    figure = live.figure(a_live(frame, phases=True))
    stacked = [trace for trace in figure["data"] if trace.get("stackgroup") == "phases"]
    assert [trace["name"] for trace in stacked][-1] == "rest"
    assert sum(float(trace["y"][0]) for trace in stacked) == pytest.approx(10)


def test_a_few_spikes_do_not_flatten_the_step_panel() -> None:
    times = [10e6] * 99 + [5_000e6]
    figure = live.figure(a_live(a_frame(step_ns=times)))
    assert figure["layout"]["yaxis2"]["autorangeoptions"]["clipmax"] == pytest.approx(40)


def test_a_thousand_buckets_fit_into_a_hundred_kilobytes() -> None:
    values = dict.fromkeys((*MEMORY, "h2d_ns", "forward_ns", "backward_ns", "optimizer_ns"), 1e9)
    for phases in (False, True):
        assert len(pack(live.figure(a_live(a_frame(1000, **values), phases=phases)))) < 100_000


def test_every_color_a_figure_names_is_in_both_palettes() -> None:
    values = dict.fromkeys((*MEMORY, "h2d_ns", "forward_ns", "backward_ns", "optimizer_ns"), 1e9)
    frame = a_frame(5, **values)
    device = BucketTable(frame.step, 1, {"util_pct": frame.band("loss")}, 5)
    heads = [
        live.figure(a_live(frame, device=device, phases=phases, transitions=[(1, 2)]))
        for phases in (True, False)
    ]
    heads.append(compare.figure([a_compared(str(at), frame) for at in range(9)]))
    text = json.dumps(heads, default=lambda array: array.tolist())
    names = {part.split('"')[0] for part in text.split('"@')[1:]} | set(RUNS)
    for palette in PALETTES.values():
        assert names <= set(palette)
    assert set(LIGHT) == set(DARK)


def test_no_time_is_rounded_to_zero_in_the_hover() -> None:
    frame = a_frame(5, step_ns=900.0, data_wait_ns=103.0, forward_ns=300.0)
    figures = [live.figure(a_live(frame, phases=phases)) for phases in (True, False)]
    figures.append(compare.figure([a_compared("a", frame)]))
    numbers = [trace["hovertemplate"] for figure in figures for trace in figure["data"]]
    times = [number for number in numbers if number and number.endswith(" ms")]
    assert len(times) >= 6
    assert all(number.endswith(",.4~r} ms") for number in times)


def test_values_with_gaps_around_each_are_drawn_as_points() -> None:
    x = np.arange(6.0)
    modes = [
        line("loss", x, np.array(y), "y", "@loss", ",.4g}")["mode"]
        for y in ([1, np.nan, 2, np.nan, 3, np.nan], [1, np.nan, 2, 3, np.nan, np.nan], [np.nan] * 5 + [1])
    ]
    assert modes == ["markers", "lines", "markers"]


def test_a_run_keeps_its_color_in_every_panel_of_a_comparison() -> None:
    figure = compare.figure([a_compared("a", a_frame()), a_compared("<b>b</b>", a_frame())])
    assert len({trace["line"]["color"] for trace in figure["data"][:3]}) == 1
    assert not any("<b>" in trace["name"] for trace in figure["data"])


def test_a_run_with_an_unknown_number_of_samples_has_no_curve_by_samples() -> None:
    known, other = a_compared("a", a_frame()), a_compared("b", a_frame())
    unknown = other._replace(positions={**other.positions, CurveAxis.SAMPLES: np.full(100, np.nan)})
    figure = compare.figure([known, unknown], CurveAxis.SAMPLES)
    assert {trace["name"] for trace in figure["data"]} == {"a"}
    assert figure["footer"].endswith("n/a for b: the number of samples is unknown.")
    assert figure["extent"] == [0, 99]
    by_step = compare.figure([known, unknown])
    assert {trace["name"] for trace in by_step["data"]} == {"a", "b"}
    assert "n/a" not in by_step["footer"]
    assert compare.figure([unknown], CurveAxis.SAMPLES)["data"] == []


def _labels(figure: dict[str, Any]) -> list[str]:
    return [annotation["text"] for annotation in figure["layout"]["annotations"]]


def _predicted(figure: dict[str, Any]) -> list[dict[str, Any]]:
    return [trace for trace in figure["data"] if trace["name"].startswith("predicted peak")]


def test_the_predicted_peak_is_a_line_named_in_the_legend_with_its_distance_from_the_measured_one() -> None:
    steps = a_frame(peak_allocated_bytes=100 * MIB, allocated_bytes=60 * MIB)
    figure = live.figure(a_live(steps, predicted=live.Predicted(97 * MIB, 100 * MIB)))
    (trace,) = _predicted(figure)
    assert trace["name"] == "predicted peak 97.0 MiB"
    assert "(−3.0 % of measured)" in trace["hovertemplate"]
    assert list(trace["y"]) == [97.0, 97.0]
    assert not any("predicted" in label for label in _labels(figure))


def test_a_prediction_far_above_what_is_drawn_does_not_flatten_it() -> None:
    steps = a_frame(peak_allocated_bytes=100 * MIB, allocated_bytes=60 * MIB)
    assert not _predicted(live.figure(a_live(steps, predicted=live.Predicted(900 * MIB, None))))


def test_before_a_settled_step_no_distance_is_named() -> None:
    steps = a_frame(peak_allocated_bytes=100 * MIB, allocated_bytes=60 * MIB)
    (trace,) = _predicted(live.figure(a_live(steps, predicted=live.Predicted(97 * MIB, None))))
    assert "measured" not in trace["hovertemplate"]


@pytest.mark.parametrize("phases", [False, True])
def test_the_live_chart_fits_the_schema_of_plotly(phases: bool) -> None:
    events = [an_event(100, EventKind.OOM, "out of memory")]
    validate_figure(live.figure(a_live(a_frame(), events=events, transitions=[(10, 14)], phases=phases)))


def test_the_comparison_fits_the_schema_of_plotly() -> None:
    parts = [ProfilePart(kind, 1e6, 0.1, 1) for kind in OperatorKind]
    kinds = ProfileKinds(10, 3, True, 10**8, parts)
    runs = [
        a_compared("a", a_frame()),
        a_compared("b", a_frame())._replace(facts=some_run("b", profile=kinds)),
    ]
    for figure in (
        *(compare.figure(runs, axis) for axis in CurveAxis),
        compare.distribution(runs),
        compare.phase_bars(runs),
        compare.kind_bars(runs),
    ):
        assert figure is not None
        validate_figure({**figure, "data": json.loads(json.dumps(figure["data"], default=np.ndarray.tolist))})


def test_a_figure_outside_the_schema_of_plotly_is_refused() -> None:
    figure = live.figure(a_live(a_frame()))
    figure["layout"]["xaxis"]["no_such_property"] = 1
    with pytest.raises(ValueError, match="no_such_property"):
        validate_figure(figure)


def test_blocks_of_a_measurement_are_shaded_by_arm() -> None:
    shapes = live.figure(a_live(a_frame(), measured=[(10, 19, False), (25, 34, True)]))["layout"]["shapes"]
    shades = [(shape["x0"], shape["x1"], shape["fillcolor"]) for shape in shapes if shape["type"] == "rect"]
    assert shades == [(9.5, 19.5, "@arm_a"), (24.5, 34.5, "@arm_b")]
