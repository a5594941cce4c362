"""The Compare page: the runs in its address, charts, the axis, and runs that cannot be compared."""

from unittest.mock import patch

import pytest

from tests.app.conftest import Open, Write, texts


def test_the_runs_in_the_address_are_compared(demo: Write, open_page: Open) -> None:
    runs = [demo("steady", 100).run_id, demo("slow-loader", 100).run_id]
    with patch("dashboard.canvas.live_plotly") as draw:
        app = open_page("compare", runs=",".join(runs))
    assert not app.exception
    selection = app.multiselect(key="compared_runs")
    assert selection.value == runs
    assert (len(selection.proto.default), selection.proto.set_value) == (2, False)
    assert "each ran once" in texts(app)
    figures = next(frame.value for frame in app.dataframe if "Figure" in frame.value)
    assert list(figures.iloc[0]) == ["state", "finished", "finished"]
    assert "Settings that differ" in texts(app)
    drawn = {call.kwargs["key"]: call.args[0] for call in draw.call_args_list}
    curves = drawn["compare_chart"]
    assert {trace["name"] for trace in curves["data"]} == {"demo: steady", "demo: slow-loader"}
    assert drawn.keys() >= {"compare_spread", "compare_phases"}


def test_runs_in_the_address_may_be_names(demo: Write, open_page: Open) -> None:
    names = [demo(kind, 100).request().name for kind in ("steady", "slow-loader")]
    app = open_page("compare", runs=",".join(names))
    assert not app.exception
    assert not app.warning
    assert "Settings that differ" in texts(app)


def test_going_back_compares_the_runs_of_that_address(demo: Write, open_page: Open) -> None:
    first, second, third = (demo(kind, 100).run_id for kind in ("steady", "slow-loader", "amp"))
    app = open_page("compare", runs=f"{first},{second}")
    app.multiselect(key="compared_runs").set_value([first, second, third]).run()
    assert app.query_params["runs"] == f"{first},{second},{third}"
    app.query_params["runs"] = f"{first},{second}"
    app.run()
    assert app.multiselect(key="compared_runs").value == [first, second]
    assert app.query_params["runs"] in (f"{first},{second}", [f"{first},{second}"])


def test_a_selection_stays_although_the_browser_has_not_the_address_of_the_one_before(
    demo: Write, open_page: Open
) -> None:
    first, second = (demo(kind, 100).run_id for kind in ("steady", "slow-loader"))
    app = open_page("compare")
    app.multiselect(key="compared_runs").set_value([first]).run()
    del app.query_params["runs"]
    app.multiselect(key="compared_runs").set_value([first, second]).run()
    assert app.multiselect(key="compared_runs").value == [first, second]


def test_curves_are_aligned_by_the_chosen_axis(demo: Write, open_page: Open) -> None:
    runs = [demo("steady", 100).run_id, demo("slow-loader", 100).run_id]
    with patch("dashboard.canvas.live_plotly") as draw:
        app = open_page("compare", runs=",".join(runs))
        draw.reset_mock()
        app.button_group(key="compare_axis").set_value("samples").run()
    curves = draw.call_args_list[0].args[0]
    assert curves["layout"]["xaxis"]["title"]["text"] == "samples"
    assert max(curves["data"][0]["x"]) > 32 * 90


@pytest.mark.parametrize("other", ["empty", "one-step"])
def test_runs_without_a_common_figure_get_a_sentence(demo: Write, open_page: Open, other: str) -> None:
    runs = [demo("empty").run_id, demo("one-step").run_id] if other == "one-step" else None
    runs = runs or [demo("steady", 50).run_id, demo("empty").run_id]
    app = open_page("compare", runs=",".join(runs))
    assert not app.exception
    assert "no figure in common" in app.info[0].value


def test_unknown_and_damaged_runs_get_a_sentence_each(demo: Write, open_page: Open) -> None:
    damaged = demo("steady", 50)
    damaged.log.write_bytes(b"garbage")
    app = open_page("compare", runs=f"{damaged.run_id},nobody,nobody")
    assert not app.exception
    assert [
        bool(part)
        for part in ("nobody" in app.warning[0].value, "not a Stepscope log" in app.warning[1].value)
    ]
    assert len(app.warning) == 2
