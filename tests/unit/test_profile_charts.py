"""The Profiler page's charts of a profile, from rows made by hand."""

from typing import Any

import pytest

from dashboard.charts import profile_kinds, profile_lines, profile_tree
from dashboard.charts.profile_lines import Works
from harness.analysis.profiles import by_kind, compare
from harness.records.profile import (
    OperatorKind,
    ProfileModuleRow,
    ProfileOpRow,
    ProfileReason,
    ProfileRow,
    ProfileStackRow,
)
from tests.figure_schema import validate_figure

MS = 1_000_000


def a_profile(profile_id: int = 1, **values: Any) -> ProfileRow:
    """Two steps of 10 ms each on a device that worked for 8 ms in each of them."""
    row = ProfileRow(
        profile_id=profile_id,
        t_ns=0,
        first_step=7,
        steps=2,
        settings_version=1,
        reason=ProfileReason.REQUESTED,
        on_device=1,
        wall_ns=20 * MS,
        busy_ns=16 * MS,
        took_ns=MS,
        slowdown=1.1,
        with_memory=0,
        with_stacks=0,
        file=None,
        file_bytes=None,
        message="Most is in one kernel.",
        left_out="",
    )
    return row._replace(**values)


def an_op(name: str, kind: str, device_ms: float | None, cpu_ms: float = 1, **values: Any) -> ProfileOpRow:
    device_ns = None if device_ms is None else round(device_ms * MS)
    cpu_ns = round(cpu_ms * MS)
    row = ProfileOpRow(1, 1, name, kind, 0, 4, cpu_ns, 2 * cpu_ns, device_ns, device_ns, None)
    return row._replace(**values)


def a_kernel(name: str, kind: str, device_ms: float) -> ProfileOpRow:
    return an_op(name, kind, device_ms, 0, is_kernel=1)


def a_module(module: str, phase: str, device_ms: float, class_name: str = "") -> ProfileModuleRow:
    return ProfileModuleRow(
        1, module, phase, class_name, 2, MS, MS, round(device_ms * MS), round(device_ms * MS)
    )


OPS = [
    an_op("aten::mm", OperatorKind.MATMUL, 12),
    an_op("aten::relu", OperatorKind.ELEMENTWISE, 4, 3),
    a_kernel("gemm<float>", OperatorKind.MATMUL, 12),
    a_kernel("relu_kernel", OperatorKind.ELEMENTWISE, 4),
]


def test_the_bars_sum_to_the_step() -> None:
    bars = profile_kinds.of_one(a_profile(), OPS)
    assert [line.kind for line in bars.lines] == [
        OperatorKind.MATMUL,
        OperatorKind.ELEMENTWISE,
        OperatorKind.IDLE,
    ]
    assert sum(line.now_ns or 0 for line in bars.lines) == pytest.approx(bars.whole.now_ns)
    assert sum(line.share or 0 for line in bars.lines) == pytest.approx(1.0)


def test_a_bar_tells_milliseconds_a_step_and_the_share() -> None:
    drawn = profile_kinds.html(profile_kinds.of_one(a_profile(), OPS))
    assert "<span>6.00 ms</span><span>60 %</span>" in drawn
    assert drawn.index('data-kind="idle"') > drawn.index('data-kind="elementwise"')


def test_a_profile_without_its_wall_time_has_no_shares_and_no_idle_time() -> None:
    drawn = profile_kinds.html(profile_kinds.of_one(a_profile(wall_ns=None, busy_ns=None), OPS))
    assert "idle" not in drawn
    assert drawn.count("n/a") == 4


def test_two_profiles_are_compared_with_the_change() -> None:
    rows = a_profile(), a_profile(2, wall_ns=10 * MS, busy_ns=8 * MS)
    later = [a_kernel("gemm<half>", OperatorKind.MATMUL, 6), a_kernel("memcpy", OperatorKind.COPY, 2)]
    compared = compare(by_kind(OPS, rows[0]), by_kind(later, rows[1]), rows)
    drawn = profile_kinds.html(profile_kinds.of_two(compared, ("#1", "#2")))
    assert "<span>6.00 ms</span><span>3.00 ms</span><span>−50 %</span>" in drawn
    assert "<span>n/a</span><span>1.00 ms</span><span>new</span>" in drawn
    assert "<span>2.00 ms</span><span>n/a</span><span>gone</span>" in drawn
    assert "<span>10.0 ms</span><span>5.00 ms</span><span>−50 %</span>" in drawn


def test_a_name_from_a_log_is_text() -> None:
    drawn = profile_kinds.html(profile_kinds.of_one(a_profile(), [a_kernel("x", "<b>odd</b>", 1)]))
    assert "<b>" not in drawn


def test_operators_come_with_their_time_a_step_and_their_share_of_the_list() -> None:
    first, second = profile_lines.lines(a_profile(), OPS, Works.OPERATORS)
    assert first.name == "aten::mm"
    assert (first.self_device_ms, first.self_cpu_ms, first.total_cpu_ms, first.calls) == (6.0, 0.5, 1.0, 2.0)
    assert first.share_pct == pytest.approx(75)
    assert second.share_pct == pytest.approx(25)


def test_kernels_have_no_time_on_the_cpu() -> None:
    lines = profile_lines.lines(a_profile(), OPS, Works.KERNELS)
    assert [line.name for line in lines] == ["gemm<float>", "relu_kernel"]
    assert {line.self_cpu_ms for line in lines} == {None}


def test_without_a_device_the_cpu_decides_and_device_times_are_missing_not_zero() -> None:
    ops = [
        an_op("aten::mm", OperatorKind.MATMUL, None, 1),
        an_op("aten::relu", OperatorKind.ELEMENTWISE, None, 3),
    ]
    lines = profile_lines.lines(a_profile(on_device=0), ops, Works.OPERATORS)
    assert [line.name for line in lines] == ["aten::relu", "aten::mm"]
    assert {line.self_device_ms for line in lines} == {None}
    assert profile_lines.works(ops) == [Works.OPERATORS]


def test_memory_is_shown_if_it_was_recorded() -> None:
    ops = [
        an_op("aten::mm", OperatorKind.MATMUL, 1, self_bytes=-(2**21)),
        an_op("aten::relu", "elementwise", 1),
    ]
    by_name = {
        line.name: line.memory_bytes for line in profile_lines.lines(a_profile(), ops, Works.OPERATORS)
    }
    assert by_name == {"aten::mm": -(2**20), "aten::relu": None}


@pytest.mark.parametrize(
    ("search", "names"),
    [
        ("", ["aten::mm", "aten::relu"]),
        ("RELU", ["aten::relu"]),
        ("matrix", ["aten::mm"]),
        ("aten element", ["aten::relu"]),
        ("nothing", []),
    ],
)
def test_a_search_finds_names_and_kinds_word_by_word(search: str, names: list[str]) -> None:
    lines = profile_lines.lines(a_profile(), OPS, Works.OPERATORS)
    assert [line.name for line in profile_lines.matching(lines, search)] == names


def test_what_differs_most_comes_first_and_what_is_new_has_no_before() -> None:
    rows = a_profile(), a_profile(2)
    later = [an_op("aten::mm", OperatorKind.MATMUL, 6), an_op("aten::copy_", OperatorKind.COPY, 1)]
    sides = [
        profile_lines.parts(row, ops, Works.OPERATORS) for row, ops in zip(rows, (OPS, later), strict=True)
    ]
    compared = compare(sides[0], sides[1], rows)
    mm, relu, copy = profile_lines.change_lines(compared)
    assert (mm.name, mm.kind, mm.before_ms, mm.after_ms, mm.difference_ms, mm.change_pct) == (
        "aten::mm",
        "matrix multiply",
        6.0,
        3.0,
        -3.0,
        -50.0,
    )
    assert (relu.after_ms, relu.change_pct) == (None, -100.0)
    assert (copy.before_ms, copy.change_pct) == (None, None)


def test_an_operator_of_two_kinds_is_compared_kind_by_kind() -> None:
    rows = a_profile(), a_profile(2)
    ops = [an_op("aten::add", OperatorKind.ELEMENTWISE, 2), an_op("aten::add", OperatorKind.OPTIMIZER, 4)]
    sides = [profile_lines.parts(rows[0], ops, Works.OPERATORS), []]
    lines = profile_lines.change_lines(compare(sides[0], sides[1], rows))
    assert [(line.name, line.kind, line.before_ms) for line in lines] == [
        ("aten::add", "optimizer", 2.0),
        ("aten::add", "elementwise", 1.0),
    ]


MODULES = [
    a_module("", "forward", 1, "Net"),
    a_module("layers.10", "forward", 2, "Linear"),
    a_module("layers.2", "forward", 3, "Linear"),
    a_module("layers.2", "backward", 6, "Linear"),
    a_module("<optimizer>", "optimizer", 2),
    a_module("<loss>", "forward", 2),
]


def _nodes(figure: dict[str, Any] | None) -> dict[str, tuple[str, str, int]]:
    assert figure is not None
    trace = figure["data"][0]
    keys = ("ids", "parents", "labels", "values")
    return {
        key: (parent, label, value)
        for key, parent, label, value in zip(*(trace[k] for k in keys), strict=True)
    }


def test_the_icicle_nests_modules_in_phases_and_sums_to_all_work() -> None:
    nodes = _nodes(profile_tree.by_module(a_profile(), MODULES))
    assert nodes["all work"] == ("", "all work", 16 * MS)
    assert nodes["forward"] == ("all work", "forward", 8 * MS)
    assert nodes["forward › layers"] == ("forward", "layers", 5 * MS)
    assert nodes["forward › layers › 2"] == ("forward › layers", "2", 3 * MS)
    assert nodes["forward › &lt;loss&gt;"] == ("forward", "loss", 2 * MS)
    assert nodes["optimizer"] == ("all work", "optimizer", 2 * MS)


def test_modules_stand_in_the_order_of_phases_and_of_their_numbers() -> None:
    keys = list(_nodes(profile_tree.by_module(a_profile(), MODULES)))
    assert keys.index("forward") < keys.index("backward") < keys.index("optimizer")
    assert keys.index("forward › layers › 2") < keys.index("forward › layers › 10")


def test_children_never_exceed_their_parent() -> None:
    nodes = _nodes(profile_tree.by_module(a_profile(), MODULES))
    for key, (_, _, value) in nodes.items():
        inside = sum(other for parent, _, other in nodes.values() if parent == key)
        assert inside <= value


def test_a_part_tells_its_time_a_step_its_share_and_its_class() -> None:
    figure = profile_tree.by_module(a_profile(), MODULES)
    assert figure is not None
    trace = figure["data"][0]
    at = trace["ids"].index("backward › layers › 2")
    assert trace["text"][at] == "3.00 ms · 38 %"
    assert trace["customdata"][at] == "per step; Linear, self time 3.00 ms"


def test_nothing_measured_draws_nothing() -> None:
    assert profile_tree.by_module(a_profile(), []) is None
    assert profile_tree.by_module(a_profile(), [a_module("a", "forward", 0)]) is None


def test_stacks_begin_where_they_part() -> None:
    rows = [
        ProfileStackRow(1, 1, "train/loop.py:9 step\nnets/a.py:1 forward\naten::mm", 2, MS, 3 * MS),
        ProfileStackRow(1, 2, "train/loop.py:9 step\nnets/b.py:2 forward\naten::mm", 2, MS, MS),
    ]
    nodes = _nodes(profile_tree.by_stack(a_profile(), rows))
    assert nodes["nets/a.py:1 forward"] == ("all work", "a.py:1 forward", 3 * MS)
    assert nodes["nets/a.py:1 forward › aten::mm"][2] == 3 * MS
    assert "train/loop.py:9 step" not in nodes


def test_an_icicle_is_as_high_as_what_is_in_it() -> None:
    deep = profile_tree.by_module(a_profile(), MODULES)
    shallow = profile_tree.by_module(a_profile(), [a_module("", "forward", 1)])
    assert deep is not None
    assert shallow is not None
    assert (deep["data"][0]["maxdepth"], shallow["data"][0]["maxdepth"]) == (4, 2)
    assert shallow["layout"]["height"] < deep["layout"]["height"]


def test_the_tree_of_modules_fits_the_schema_of_plotly() -> None:
    figure = profile_tree.by_module(a_profile(), MODULES)
    assert figure is not None
    validate_figure(figure)
