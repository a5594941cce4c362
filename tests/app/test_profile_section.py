"""Profile now on the Profiler page: asking, waiting, what a profile says, two of them, and the trace."""

import math
import re
from collections.abc import Iterator
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from dashboard.data import profiles as profile_data
from dashboard.data.figures import figures
from harness.demo.machine import FACTS
from harness.records.profile import OperatorKind, ProfileModuleRow, ProfileReason, ProfileRow
from harness.records.run import CommandState, StepFlag
from harness.settings import Settings
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.reader import LogReader
from tests.app.conftest import Open, Write, texts
from tests.app.live_factories import LiveRun, live_run
from tests.store_factories import a_step
from tests.unit.test_profile_charts import MS, a_profile, an_op


@pytest.fixture
def live(home: Home) -> Iterator[LiveRun]:
    with live_run(home, Settings(batch_size=32)) as run:
        yield run


def _messages(app: AppTest) -> str:
    return texts(app).replace("\\", "").replace("\u2060", "")


def _badges(app: AppTest) -> list[str]:
    return [str(one.value) for one in app.markdown if "-badge[" in str(one.value)]


def _html(app: AppTest) -> str:
    return "".join(str(one.proto.body) for one in app.get("html"))


def _table(app: AppTest, column: str = "calls") -> Any:
    frames = [element.value for element in app.dataframe]
    return next(frame for frame in frames if column in frame.columns)


def _taken_on_the_cpu(**values: object) -> ProfileRow:
    row = a_profile(on_device=0, settings_version=0, message="Most is in aten::mm.")
    return row._replace(**values)  # type: ignore[arg-type]  # any column


def _put_profile(live: LiveRun, **values: object) -> None:
    """A profile of a run without a device's clock."""
    live.put(
        an_op("aten::mm", OperatorKind.MATMUL, None, 12),
        an_op("aten::relu", OperatorKind.ELEMENTWISE, None, 4),
        ProfileModuleRow(1, "layer", "forward", "Linear", 2, 16 * MS, 16 * MS, None, None),
        _taken_on_the_cpu(**values),
    )


def test_no_slowdown_is_stated_of_recorded_steps_that_were_faster(live: LiveRun, open_page: Open) -> None:
    _put_profile(live, slowdown=0.0065)
    app = open_page("profiler", run=live.folder.run_id)
    assert "recorded steps are slower by an unknown amount" in _messages(app)
    assert "times as long as one before" not in _messages(app)


def test_before_the_first_profile_it_is_said_what_one_gives_and_costs(live: LiveRun, open_page: Open) -> None:
    app = open_page("profiler", run=live.folder.run_id)
    assert not app.exception
    assert "No profile of this run yet" in _messages(app)
    assert "The recorded steps are slower" in _messages(app)
    assert not app.button(key="profile_now_0").disabled


def test_a_click_asks_for_three_steps_and_the_request_is_shown_until_it_is_answered(
    live: LiveRun, open_page: Open
) -> None:
    app = open_page("profiler", run=live.folder.run_id)
    app.button(key="profile_now_0").click().run()
    assert live.requests == [("profile", {"steps": 3})]
    assert any("queued" in badge for badge in _badges(app))
    assert app.button(key="profile_now_1").disabled


def test_the_request_has_steps_memory_and_stacks(live: LiveRun, open_page: Open) -> None:
    app = open_page("profiler", run=live.folder.run_id)
    app.slider(key="profile_steps").set_value(5)
    app.toggle(key="profile_memory").set_value(True)
    app.toggle(key="profile_stacks").set_value(True).run()
    app.button(key="profile_now_0").click().run()
    assert live.requests == [("profile", {"steps": 5, "memory": True, "stacks": True})]


def test_while_steps_are_recorded_it_is_said_which(live: LiveRun, open_page: Open) -> None:
    app = open_page("profiler", run=live.folder.run_id)
    app.button(key="profile_now_0").click().run()
    live.fed([a_step(step)._replace(flags=StepFlag.PROFILED.value) for step in (40, 41)], lambda _: False)
    app.run()
    assert any("recording steps 41–43" in badge for badge in _badges(app))


def test_steps_that_a_snapshot_tracks_are_not_shown_as_a_recorded_profile(
    live: LiveRun, open_page: Open
) -> None:
    app = open_page("profiler", run=live.folder.run_id)
    app.button(key="profile_now_0").click().run()
    live.fed([a_step(step)._replace(flags=StepFlag.TRACKED.value) for step in (40, 41)], lambda _: False)
    app.run()
    queued = next(one for one in app.markdown if "queued" in str(one.value))
    assert "after the snapshot" in queued.proto.help


def test_a_profile_of_the_cpu_says_everything_but_what_a_device_would(live: LiveRun, open_page: Open) -> None:
    app = open_page("profiler", run=live.folder.run_id)
    app.button(key="profile_now_0").click().run()
    _put_profile(live)
    live.answer(CommandState.APPLIED, "done", step=9)
    app.run()
    assert not app.exception
    assert any("done at step 9" in badge for badge in _badges(app))
    text = _messages(app)
    assert "**Most is in aten::mm.**" in text
    assert "Steps 7 to 8 · settings 0: as started · on the CPU's clock" in text
    assert "a recorded step took 1.1 times as long as one before" in text
    assert "training waited 1.0 ms after them" in text
    assert 'data-kind="idle"' in _html(app)
    assert set(_table(app).columns) == {"name", "kind", "share_pct", "self_cpu_ms", "total_cpu_ms", "calls"}
    # The sentence above has shares of the whole step.
    assert any('"Share of list"' in frame.proto.columns for frame in app.dataframe)
    assert not app.button(key="profile_now_1").disabled


def test_why_there_is_no_profile_is_one_sentence(live: LiveRun, open_page: Open) -> None:
    why = "The profile is unavailable, because another profiler is active in this run."
    app = open_page("profiler", run=live.folder.run_id)
    app.button(key="profile_now_0").click().run()
    live.answer(CommandState.REJECTED, why)
    app.run()
    assert why in [one.value.replace("\\", "") for one in app.warning]
    assert any("unavailable" in badge for badge in _badges(app))
    _put_profile(live, first_step=20)
    app.run()
    assert not [one for one in app.warning if "another profiler" in one.value]


def test_a_scheduled_profile_that_failed_says_why(live: LiveRun, open_page: Open) -> None:
    why = "The profile is unavailable, because CUPTI is missing."
    live.put(_taken_on_the_cpu(steps=0, message=why, reason=ProfileReason.SCHEDULE))
    app = open_page("profiler", run=live.folder.run_id)
    assert not app.exception
    assert why in [one.value.replace("\\", "") for one in app.warning]
    assert "No profile of this run yet" in _messages(app)


def test_a_simulated_run_cannot_be_profiled_and_says_so(demo: Write, open_page: Open) -> None:
    app = open_page("profiler", run=demo("steady", 100).run_id)
    button = app.button(key="profile_now_0")
    assert button.disabled
    assert "simulated" in button.help
    assert "This run has no profile." in _messages(app)


def test_two_profiles_stand_side_by_side(demo: Write, open_page: Open) -> None:
    app = open_page("profiler", run=demo("amp", 1_000).run_id)
    assert re.search(r"3 steps .*took", _messages(app))
    app.selectbox(key="profile_beside_2_2").set_value(1).run()
    assert not app.exception
    assert re.search(
        r"After AMP bf16 a step takes 4\d % less time \(.*matrix multiply \(−5\d %\)", _messages(app)
    )
    assert re.search(r"matrix multiply.*−5\d %", _html(app))
    changes = _table(app, "difference_ms").set_index("name")
    assert changes["change_pct"]["aten::mm"] == pytest.approx(-50, abs=2)
    assert math.isnan(changes["before_ms"]["aten::_scaled_dot_product_flash_attention"])
    app.button_group(key="profile_works").set_value("modules").run()
    assert "<optimizer>" in list(_table(app, "difference_ms")["name"])


def test_the_earlier_profile_comes_first_whichever_is_chosen(demo: Write, open_page: Open) -> None:
    app = open_page("profiler", run=demo("amp", 1_000).run_id)
    app.selectbox(key="profile_pick_2").set_value(1).run()
    app.selectbox(key="profile_beside_2_1").set_value(2).run()
    assert re.search(r"After AMP bf16 a step takes 4\d % less time", _messages(app))


def test_a_search_narrows_the_table(demo: Write, open_page: Open) -> None:
    app = open_page("profiler", run=demo("amp", 1_000).run_id)
    app.text_input(key="profile_search").set_value("gelu").run()
    names = list(_table(app)["name"])
    assert {"aten::gelu", "aten::gelu_backward"} <= set(names)
    assert all("gelu" in name.casefold() for name in names)
    assert f"{len(names)} of " in _messages(app)
    app.button_group(key="profile_works").set_value("kernels").run()
    assert set(_table(app).columns) == {
        "name",
        "kind",
        "share_pct",
        "self_device_ms",
        "total_device_ms",
        "calls",
    }
    app.text_input(key="profile_search").set_value("no such thing").run()
    assert not app.exception
    assert re.search(r"0 of \d+ kernels", _messages(app))


def _with_trace(live: LiveRun, name: str = "profile-1.json.gz") -> ProfileRow:
    live.folder.captures.mkdir(exist_ok=True)
    return _taken_on_the_cpu(file=name, file_bytes=4)


def test_the_trace_is_there_to_download(live: LiveRun, open_page: Open) -> None:
    _put_profile(live, file="profile-1.json.gz", file_bytes=4)
    live.folder.captures.mkdir()
    (live.folder.captures / "profile-1.json.gz").write_bytes(b"gzip")
    app = open_page("profiler", run=live.folder.run_id)
    assert "ui.perfetto.dev" in _messages(app)
    (link,) = app.get("link_button")
    assert link.proto.label == "Trace (4 B)"
    assert link.proto.url == f"download/capture/{live.folder.run_id}/profile-1.json.gz"


def test_a_trace_that_is_gone_says_so(live: LiveRun, open_page: Open) -> None:
    _put_profile(live, file="profile-1.json.gz", file_bytes=4)
    app = open_page("profiler", run=live.folder.run_id)
    assert not app.exception
    assert "The trace is missing" in _messages(app)
    assert not app.get("link_button")


@pytest.mark.parametrize("name", ["../log.sqlite3", "/etc/hostname", "..", "", "link.json.gz"])
def test_a_log_cannot_name_a_file_outside_of_its_captures(live: LiveRun, name: str) -> None:
    row = _with_trace(live, name)
    (live.folder.captures / "link.json.gz").symlink_to(live.folder.log)
    assert profile_data.trace(live.folder, row).path is None


def test_what_makes_two_profiles_hard_to_compare_is_said(live: LiveRun, open_page: Open) -> None:
    live.go_on(40, 50)
    live.fed([a_step(51)._replace(samples=5)], lambda _: False)
    for number, first in ((1, 40), (2, 51)):
        live.put(
            an_op("aten::mm", OperatorKind.MATMUL, None, 12, profile_id=number),
            _taken_on_the_cpu(profile_id=number, first_step=first, with_stacks=number - 1),
        )
    app = open_page("profiler", run=live.folder.run_id)
    app.selectbox(key="profile_beside_2_2").set_value(1).run()
    assert not app.exception
    assert re.search(r"All times are per step: \d+ samples in #1, 5 samples in #2\.", _messages(app))
    assert "The two differ in what they record" in _messages(app)
    assert "on the CPU's clock · with stacks" in _messages(app)


def test_profiles_of_different_clocks_are_not_compared(live: LiveRun, open_page: Open) -> None:
    for number in (1, 2):
        live.put(
            an_op("aten::mm", OperatorKind.MATMUL, None, 12, profile_id=number),
            _taken_on_the_cpu(profile_id=number, on_device=number - 1),
        )
    app = open_page("profiler", run=live.folder.run_id)
    app.selectbox(key="profile_beside_2_2").set_value(1).run()
    assert not app.exception
    assert [one for one in app.warning if "kernels on the device" in one.value]


def test_a_profile_is_read_once(demo: Write) -> None:
    folder = demo("amp", 1_000)
    row = profile_data.read_all(folder)[0]
    assert profile_data.read(folder, row) is profile_data.read(folder, row)


def test_profiles_are_marked_on_the_live_chart_and_their_steps_shaded(demo: Write) -> None:
    folder = demo("amp", 1_000)
    result = figures(folder, FACTS, None, None, phases=False)
    marked = [event.step for event in result.events if event.label == "profile"]
    assert marked == [202, 452]
    assert [span for span in result.transitions if span[1] in marked] == [(199, 202), (449, 452)]
    assert _flagged(folder) == [*range(199, 203), *range(449, 453)]


def _flagged(folder: RunFolder) -> list[int]:
    with LogReader(folder.log) as reader:
        return [row.step for row in reader.steps(1, 1_000) if row.flags & StepFlag.PROFILED]
