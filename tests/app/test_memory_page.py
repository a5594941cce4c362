"""The Memory page on every scenario, on old and damaged logs, and what it says of what is not known."""

import contextlib
import json
import re
import sqlite3
import time
from pathlib import Path
from unittest.mock import patch

import pytest
from streamlit.testing.v1 import AppTest

from dashboard.components import count_column, decimal_column, size_column, table
from dashboard.data.memory import raw_snapshot
from harness.analysis.oom.explain import explain
from harness.analysis.oom.report import RecentStep, to_json
from harness.demo.scenarios import SCENARIOS
from harness.records.memory import LeakRow, LeakSeries, LeakVerdict, OomReportRow, SnapshotReason, SnapshotRow
from harness.records.run import CommandKind, CommandRow, DeviceKind, EventRow, Severity
from harness.settings import Settings
from harness.store.control import ControlLog
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.inserts import INSERTS
from harness.store.reader import LogReader
from tests.app.conftest import Open, Write, texts
from tests.app.live_factories import live_run
from tests.hostile_folders import edit
from tests.oom_factories import GIB, MIB, some_facts

_LEAK = LeakRow(
    10**15,
    480,
    LeakSeries.ALLOCATED,
    LeakVerdict.LEAK,
    20,
    2.9e6,
    2.8e6,
    3.0e6,
    10**9,
    3_100,
    5e4,
    "It grew <b>.",
    "An output is kept.",
)
MEMORY_TABLES = ("memory_samples", "snapshots", "allocations", "module_memory", "leaks", "oom_reports")


def _read(app: AppTest) -> str:
    """Return the visible text, without escapes of markup."""
    return texts(app).replace("\\", "").replace("\u2060", "")


def _waterfall(app: AppTest) -> str:
    """The waterfall as it was sent to the browser."""
    bodies = [str(element.proto.body) for element in app.get("html")]
    return next((body for body in bodies if 'ss-fall-line"' in body), "")


def _insert(folder: RunFolder, *rows: EventRow | LeakRow | OomReportRow | SnapshotRow) -> None:
    with contextlib.closing(sqlite3.connect(folder.log)) as connection, connection:
        for row in rows:
            connection.execute(INSERTS[type(row)], row)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_is_shown_without_an_exception(scenario: str, demo: Write, open_page: Open) -> None:
    app = open_page("memory", run=demo(scenario).run_id)
    assert not app.exception
    assert "simulated" in texts(app)


def test_an_empty_home_says_what_to_do(open_page: Open) -> None:
    assert "No run yet" in texts(open_page("memory"))


def test_an_unknown_run_is_one_sentence(demo: Write, open_page: Open) -> None:
    demo("steady", 50)
    app = open_page("memory", run="nonsense")
    assert not app.exception
    assert "There is no run" in app.error[0].value


def test_a_healthy_run_fits_and_its_waterfall_sums_to_the_card(demo: Write, open_page: Open) -> None:
    app = open_page("memory", run=demo("steady").run_id)
    assert "Fits well." in app.success[0].value
    bars = _waterfall(app)
    parts = ("context and libraries", "weights and buffers", "optimizer state", "free", "GPU memory")
    for name in parts:
        assert name in bars
    assert "140 GiB" in bars


def test_out_of_memory_comes_first_with_its_report_and_a_download(demo: Write, open_page: Open) -> None:
    app = open_page("memory", run=demo("oom").run_id)
    assert "Ran out of memory." in app.error[0].value
    text = _read(app)
    assert "The memory cap of 48.0 GiB was reached" in text
    assert "Batch 72 peaked at" in text
    assert "harness/models/attention.py:54 forward" in text
    assert "Report as text" in [getattr(button, "label", "") for button in app.get("download_button")]


def _oom_report(device: DeviceKind) -> OomReportRow:
    steps = (RecentStep(119, 9_000_000, 79 * GIB, 79 * GIB, 79 * GIB + 100 * MIB),)
    facts = some_facts(device, steps=steps, device_free_bytes=GIB, others_bytes=GIB)
    report = explain(facts, outcome="The run ends.")
    return OomReportRow(10**15, 120, report.outcome, to_json(report))


@pytest.mark.parametrize(
    ("device", "figure", "column"),
    [(DeviceKind.CPU, "Heap", "Process (RSS)"), (DeviceKind.CUDA, "Reserved", "Reserved")],
)
def test_a_report_separates_the_heap_from_the_memory_of_the_process(
    device: DeviceKind, figure: str, column: str, demo: Write, open_page: Open
) -> None:
    """On the CPU the log has the process where a GPU has the allocator's reserved memory."""
    folder = demo("steady", 50)
    _insert(folder, _oom_report(device))
    app = open_page("memory", run=folder.run_id)
    assert not app.exception
    help_of = {caption.value: caption.help for caption in app.caption}
    assert figure in help_of
    is_cpu = device is DeviceKind.CPU
    assert ("what else programs allocate" in help_of["Allocated"]) is is_cpu
    assert f"The part of {'the heap' if is_cpu else 'reserved memory'} that" in help_of["Unused"]
    columns = [json.loads(frame.proto.columns) for frame in app.dataframe]
    labels = [one.get("label") for frame in columns for one in frame.values()]
    assert column in labels
    helps = [str(one.get("help")) for frame in columns for one in frame.values()]
    assert any(text.startswith("In use on the heap at") for text in helps) is is_cpu
    (budget,) = (caption.value for caption in app.caption if caption.value.startswith("80.0 GiB = "))
    assert " free − 1.10 GiB excess" in budget
    assert "= 79.0 GiB allocated" in budget


def test_fragmentation_is_named_from_the_allocators_own_retries(demo: Write, open_page: Open) -> None:
    app = open_page("memory", run=demo("fragmentation").run_id)
    assert "Fragmenting." in app.error[0].value


def test_a_leak_is_the_verdict_with_its_evidence(demo: Write, open_page: Open) -> None:
    folder = demo("steady", 500)
    _insert(folder, _LEAK)
    app = open_page("memory", run=folder.run_id)
    assert not app.exception
    assert "Leak." in app.error[0].value
    text = _read(app)
    for piece in (
        "2.77 MiB per step",
        "2.67 MiB to 2.86 MiB",
        "An output is kept",
    ):
        assert piece in text


def test_only_of_an_active_run_it_is_projected_when_memory_runs_out(
    demo: Write, home: Home, open_page: Open
) -> None:
    ended = demo("steady", 500)
    _insert(ended, _LEAK)
    page = open_page("memory", run=ended.run_id)
    assert "out of memory in" not in _read(page)
    assert f"At step {_LEAK.step:,}: {_LEAK.message}" in [text.value for text in page.text]
    with live_run(home, Settings()) as run:
        run.put(_LEAK)
        page = open_page("memory", run=run.folder.run_id)
        assert "out of memory in about 3,100 steps" in _read(page)
        assert _LEAK.message in [text.value for text in page.text]


def test_snapshots_name_what_grew_and_are_compared(demo: Write, open_page: Open) -> None:
    app = open_page("memory", run=demo("leak").run_id)
    text = _read(app)
    assert "allocated at train.py:88 train_step" in text
    assert "As the snapshot at step 2,800 shows, 4 steps retained" in str(app.error[0].value)
    assert "most of it from train.py:88 train_step: 2.82 MiB per step" in text
    holders = next(frame.value for frame in app.dataframe if "held_bytes" in frame.value)
    assert holders["site"][0] == "train.py:88 train_step"


def test_a_leak_without_a_site_of_tensors_is_explained_by_the_hunt_for_it(
    demo: Write, open_page: Open
) -> None:
    folder = demo("steady", 500)
    graphs = "The autograd graphs of 10 of 10 steps were retained by a tensor created at train.py:9 <module>."
    hunt = SnapshotRow(
        9, 10**15, 490, SnapshotReason.LEAK, "", 12, None, None, None, 0, 0, None, None, None, graphs
    )
    _insert(folder, _LEAK, hunt)
    text = str(open_page("memory", run=folder.run_id).error[0].value).replace("\\", "").replace("\u2060", "")
    assert text.endswith(f"Snapshot at step 490: {graphs}")


def test_the_raw_snapshot_is_offered_where_there_is_one(demo: Write, open_page: Open) -> None:
    folder = demo("leak", 100)
    with contextlib.closing(sqlite3.connect(folder.log)) as connection, connection:
        connection.execute("UPDATE snapshots SET file = 'snapshot.pickle', file_bytes = 5")
    assert "The raw file is missing" in texts(open_page("memory", run=folder.run_id))
    (folder.path / "captures").mkdir(exist_ok=True)
    (folder.path / "captures" / "snapshot.pickle").write_bytes(b"12345")
    app = open_page("memory", run=folder.run_id)
    assert "Raw snapshot (5 B)" in [link.proto.label for link in app.get("link_button")]
    assert "memory_viz" in _read(app)


@pytest.mark.parametrize("name", ["../log.sqlite3", "/etc/hostname", "..", ".", "", "link"])
def test_a_name_that_leads_out_of_the_folder_is_no_raw_snapshot(name: str, demo: Write) -> None:
    folder = demo("leak", 100)
    (folder.path / "captures").mkdir(exist_ok=True)
    (folder.path / "captures" / "link").symlink_to(folder.log)
    with LogReader(folder.log) as reader:
        row = reader.memory.snapshots()[-1]._replace(file=name)
    assert raw_snapshot(folder, row) is None


def test_an_empty_cache_call_is_listed_with_its_effect(demo: Write, open_page: Open) -> None:
    app = open_page("memory", run=demo("amp").run_id)
    (row,) = next(frame.value for frame in app.dataframe if "Released" in frame.value).to_dict("records")
    assert row["Released"] == "18.5 GiB"
    assert "over 10 steps" in row["Extra time"]


def test_modules_are_known_after_the_census_and_activations_after_a_snapshot(
    demo: Write, open_page: Open
) -> None:
    assert "Activations are n/a" in texts(open_page("memory", run=demo("steady", 50).run_id))
    app = open_page("memory", run=demo("leak", 50).run_id)
    assert "Activations are n/a" not in texts(app)
    app.button_group(key="module_part").set_value("activations").run()
    assert not app.exception


@pytest.mark.parametrize("page", ["live", "memory", "profiler"])
def test_no_page_says_yet_of_a_run_that_has_ended(demo: Write, open_page: Open, page: str) -> None:
    for scenario in ("empty", "one-step"):
        app = open_page(page, run=demo(scenario).run_id)
        assert not app.exception
        assert not re.search(r"\byet\b", texts(app))


def test_a_size_in_a_table_has_the_unit_that_suits_it_and_is_sorted_as_a_number() -> None:
    with patch("streamlit.dataframe") as draw:
        rows = [{"size": size, "step": 30_000} for size in (4, 20 * 2**10, 13 * 2**20, None)]
        columns = {"size": size_column("Size"), "step": count_column("Step")}
        table(rows, columns=columns, alt="Sizes.")
    drawn = draw.call_args.args[0]
    lines = drawn.hide(axis="index").to_string(delimiter=" | ").split("\n")
    assert lines[1:-1] == ["4 B | 30,000", "20.0 KiB | 30,000", "13.0 MiB | 30,000", "n/a | 30,000"]
    assert drawn.data["size"].dtype == float


@pytest.mark.parametrize(("largest", "is_simple"), [(999.5, True), (1_000.0, False), (-2.0, False)])
def test_a_table_whose_numbers_the_browser_writes_alike_is_not_formatted_by_pandas(
    largest: float, is_simple: bool
) -> None:
    with patch("streamlit.dataframe") as draw:
        rows = [{"time": time, "step": 7} for time in (0.25, largest, None)]
        table(
            rows, columns={"time": decimal_column("Time, ms", 2), "step": count_column("Step")}, alt="Times."
        )
    assert (draw.call_args.args[0] == {"time": [0.25, largest, None], "step": [7, 7, 7]}) is is_simple
    formats = [column["type_config"]["format"] for column in draw.call_args.kwargs["column_config"].values()]
    assert formats == (["%.2f", "%d"] if is_simple else [None, None])


def test_memory_that_was_never_written_is_a_cause_of_readings_that_disagree(
    demo: Write, open_page: Open
) -> None:
    folder = demo("steady", 50)
    cpu = "device = json_set(device, '$.kind', 'cpu', '$.ordinal', null)"
    edit(folder, f"UPDATE run SET {cpu}", f"UPDATE memory_samples SET process_bytes = {GIB}")
    assert "memory that was never written is not resident" in texts(open_page("memory", run=folder.run_id))


def test_a_log_of_the_first_version_says_what_it_does_not_have(demo: Write, open_page: Open) -> None:
    folder = demo("steady", 200)
    with contextlib.closing(sqlite3.connect(folder.log)) as connection, connection:
        for table in MEMORY_TABLES:
            connection.execute(f"DROP TABLE {table}")
        connection.execute("PRAGMA user_version = 1")
    app = open_page("memory", run=folder.run_id)
    assert not app.exception
    assert _waterfall(app) == ""
    assert "n/a: no memory sample." in texts(app)
    assert "Fits well." in app.success[0].value


def test_a_run_that_was_refused_for_its_cap_has_the_refusal_as_its_verdict(
    demo: Write, open_page: Open
) -> None:
    folder = demo("steady", 50)
    detail = json.dumps({"setting": "memory_cap_gib"})
    refusal = ("error", Severity.ERROR, "failed", "The cap is too small.", detail, None)
    _insert(folder, EventRow(10**15, 50, *refusal))
    app = open_page("memory", run=folder.run_id)
    assert [box.value for box in app.error] == ["**Cap refused.** The cap is too small\\."]
    assert not app.success


def test_a_report_of_another_version_is_a_sentence(demo: Write, open_page: Open) -> None:
    folder = demo("steady", 50)
    _insert(folder, OomReportRow(10**15, 40, "The step was skipped.", json.dumps({"new": 1})))
    app = open_page("memory", run=folder.run_id)
    assert not app.exception
    assert "written by another version" in texts(app)
    assert "The step was skipped." in texts(app)


@pytest.mark.parametrize("damage", [b"not SQLite at all", b"SQLite format 3\0" + bytes(5_000)])
def test_a_damaged_log_is_one_sentence(damage: bytes, demo: Write, open_page: Open) -> None:
    folder = demo("steady", 100)
    folder.log.write_bytes(damage)
    app = open_page("memory", run=folder.run_id)
    assert not app.exception
    assert app.error


def test_a_run_that_is_starting_is_waited_for(home: Home, open_page: Open) -> None:
    home.create("slow start", Settings(inject="leak:list"), time.time_ns())
    app = open_page("memory")
    assert not app.exception
    assert "No memory data" in app.info[0].value
    assert "injected: leak" in _read(app)


def test_a_requested_snapshot_is_queued(demo: Write, home: Home, open_page: Open) -> None:
    folder = demo("stalled")
    with ControlLog(folder) as control:
        control.send(CommandRow("c1", time.time_ns(), CommandKind.SNAPSHOT, "{}", "shell"))
    app = open_page("memory", run=folder.run_id)
    assert "snapshot · queued" in texts(app)


def test_without_a_process_no_snapshot_can_be_taken_and_the_button_says_why(
    demo: Write, open_page: Open
) -> None:
    button = open_page("memory", run=demo("steady", 100).run_id).button(key="snapshot_0")
    assert button.disabled
    assert "simulated" in str(button.help)


def test_the_run_shown_last_is_shown_on_the_next_page_too(demo: Write, open_page: Open) -> None:
    older = demo("steady", 50)
    demo("one-step")
    app = open_page(run=older.run_id)
    del app.query_params["run"]
    app._page_hash = app.session_state["pages"]["memory"]._script_hash
    app.run()
    assert app.query_params["run"] == [older.run_id] or app.query_params["run"] == older.run_id


def test_nothing_new_is_drawn_from_what_is_kept(demo: Write, open_page: Open) -> None:
    app = open_page("memory", run=demo("steady", 200).run_id)
    first = app.session_state["memory_tick"]
    app.run()
    assert app.session_state["memory_tick"] is first


def test_a_tick_is_small_at_any_length(demo: Write, open_page: Open, tmp_path: Path) -> None:
    del tmp_path
    app = open_page("memory", run=demo("steady", 20_000).run_id)
    assert len(app.session_state["memory_tick"].figure) < 60_000


@pytest.mark.parametrize(
    ("path", "scenario"), [("memory", "oom"), ("memory", "leak"), ("profiler", "steady")]
)
def test_no_number_is_formatted_by_the_browser(
    path: str, scenario: str, demo: Write, open_page: Open
) -> None:
    frames = open_page(path, run=demo(scenario).run_id).dataframe
    assert frames
    assert not any("localized" in frame.proto.columns for frame in frames)
    assert not any('"percent"' in frame.proto.columns for frame in frames)
