"""The simulated runs are honest logs: sound, marked, repeatable, and each shows what it is named for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.demo import SCENARIOS, write, write_all
from harness.errors import UsageError
from harness.records.memory import LeakSeries, LeakVerdict
from harness.records.run import EventKind, EventRow, RunState, StepFlag, StepRow
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.reader import LogReader
from tests.simulated_runs import SimulatedRuns

pytestmark = pytest.mark.slow

_GIB = 2**30


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def runs(home: Home, simulated_runs: SimulatedRuns) -> dict[str, RunFolder]:
    return {key: simulated_runs.copy(home, key) for key in SCENARIOS}


def _steps(folder: RunFolder) -> list[StepRow]:
    with LogReader(folder.log) as reader:
        return reader.steps(0, 10**9, limit=10**6)


def _events(folder: RunFolder) -> list[EventRow]:
    with LogReader(folder.log) as reader:
        return [event for _, event in reader.events()]


@pytest.mark.parametrize("key", SCENARIOS)
def test_a_simulated_run_is_a_sound_log_and_says_what_it_is(runs: dict[str, RunFolder], key: str) -> None:
    with LogReader(runs[key].log) as reader:
        reader.check()
        run = reader.run()
        versions = [row.version for row in reader.settings_history()]
        acks = reader.acks()
        extent = reader.extent()
    assert run.simulated == 1
    assert run.name == runs[key].request().name == f"demo: {key}"
    assert "(simulated)" in json.loads(run.device)["name"]
    assert run.state == SCENARIOS[key].end
    assert run.state_message.endswith(".")
    assert (run.ended_unix_ns is not None) == SCENARIOS[key].end.is_over
    assert extent.steps == SCENARIOS[key].steps
    assert versions == list(range(1, len(versions) + 1))
    assert len(acks) == len(SCENARIOS[key].changes)
    assert "nothing was trained" in runs[key].output_tail(1)[0]


def test_no_other_user_can_read_a_file_of_a_simulated_run(runs: dict[str, RunFolder]) -> None:
    modes = {path: path.stat().st_mode & 0o077 for folder in runs.values() for path in folder.path.iterdir()}
    assert modes
    assert not any(modes.values()), modes


@pytest.mark.parametrize("key", SCENARIOS)
def test_every_step_could_have_happened(runs: dict[str, RunFolder], key: str) -> None:
    previous_ns = 0
    for row in _steps(runs[key]):
        phases_ns = row.data_wait_ns + row.h2d_ns + row.forward_ns + row.backward_ns + row.optimizer_ns
        assert 0 < phases_ns <= row.step_ns
        assert row.t_ns - row.step_ns == pytest.approx(previous_ns, abs=2)
        previous_ns = row.t_ns
        assert row.allocated_bytes is not None
        assert row.peak_allocated_bytes is not None
        assert row.reserved_bytes is not None
        assert row.peak_reserved_bytes is not None
        assert 0 < row.allocated_bytes <= row.peak_allocated_bytes <= row.peak_reserved_bytes <= 48 * _GIB
        assert row.allocated_bytes <= row.reserved_bytes
        assert row.loss is not None
        assert 0 < row.loss < 6.5


@pytest.mark.parametrize("key", ["steady", "slow-loader"])
def test_telemetry_comes_once_a_second(runs: dict[str, RunFolder], key: str) -> None:
    with LogReader(runs[key].log) as reader:
        last = reader.extent().last or 0
        series = reader.device_series(reader.devices()[0], 0, last, 100_000)
        host = reader.latest_host_sample()
        seconds = reader.last_steps(1)[0].t_ns / 1e9
    assert len(series.rows) == pytest.approx(seconds, abs=2)
    assert host is not None
    assert host.seq == pytest.approx(seconds, abs=2)


def test_one_seed_is_one_run(home: Home) -> None:
    one, same, other = (_steps(write("steady", home, steps=300, seed=seed)) for seed in (5, 5, 6))
    assert one == same
    assert one != other


def test_writing_again_finds_a_free_name(home: Home, runs: dict[str, RunFolder]) -> None:
    assert write("one-step", home).request().name == "demo: one-step 2"


def test_an_unknown_scenario_is_a_usage_error_and_leaves_nothing(home: Home) -> None:
    before = home.runs()
    with pytest.raises(UsageError, match="no scenario 'nonsense'; choose one of: steady, amp"):
        write("nonsense", home)
    assert home.runs() == before


def test_the_first_scenario_is_the_newest_run(home: Home, runs: dict[str, RunFolder]) -> None:
    created = {key: folder.request().created_unix_ns for key, folder in runs.items()}
    assert len(set(created.values())) == len(created)


def _between(rows: list[StepRow], low: float, high: float, column: str) -> float:
    """The median of a column over a part of the run, settling steps left out."""
    part = rows[int(low * len(rows)) : int(high * len(rows))]
    values = sorted(getattr(row, column) for row in part if not row.flags)
    return float(values[len(values) // 2])


def test_amp_saves_memory_and_time(runs: dict[str, RunFolder]) -> None:
    rows = _steps(runs["amp"])
    assert _between(rows, 0.4, 0.5, "step_ns") < 0.75 * _between(rows, 0.2, 0.3, "step_ns")
    before, after = (_between(rows, *part, "peak_allocated_bytes") for part in ((0.2, 0.3), (0.4, 0.5)))
    assert after < 0.75 * before
    assert _between(rows, 0.9, 1, "data_wait_ns") < 0.6 * _between(rows, 0.76, 0.84, "data_wait_ns")
    labels = [event.label for event in _events(runs["amp"]) if event.kind != EventKind.STATE]
    assert labels == [
        "profile",
        "AMP bf16",
        "profile",
        "batch 48",
        "empty_cache()",
        "pinned on, non-blocking on",
    ]
    settling = {row.settings_version for row in rows if row.flags & StepFlag.TRANSITION}
    assert settling == {2, 3, 4}


def test_a_leak_raises_allocated_memory(runs: dict[str, RunFolder]) -> None:
    rows = _steps(runs["leak"])
    grown = _between(rows, 0.9, 1, "allocated_bytes") - _between(rows, 0, 0.1, "allocated_bytes")
    assert 9 * _GIB < grown < 11 * _GIB


def test_fragmentation_raises_reserved_memory_alone(runs: dict[str, RunFolder]) -> None:
    rows = _steps(runs["fragmentation"])
    assert abs(_between(rows, 0.9, 1, "allocated_bytes") - _between(rows, 0, 0.1, "allocated_bytes")) < 2**26
    assert _between(rows, 0.9, 1, "reserved_bytes") == 48 * _GIB
    assert (rows[-1].alloc_retries or 0) > 100
    assert rows[len(rows) // 2].alloc_retries == 0


def test_running_out_of_memory_is_an_event_after_the_last_step(runs: dict[str, RunFolder]) -> None:
    oom = [event for event in _events(runs["oom"]) if event.kind == EventKind.OOM]
    assert len(oom) == 1
    assert oom[0].step == SCENARIOS["oom"].steps + 1
    assert "Tried to allocate" in oom[0].message


def test_a_slow_loader_starves_the_card_until_workers_help(runs: dict[str, RunFolder]) -> None:
    rows = _steps(runs["slow-loader"])
    assert _between(rows, 0.1, 0.5, "data_wait_ns") > 0.4 * _between(rows, 0.1, 0.5, "step_ns")
    assert _between(rows, 0.7, 1, "data_wait_ns") < 0.05 * _between(rows, 0.7, 1, "step_ns")


def test_a_stalled_run_has_said_so(runs: dict[str, RunFolder]) -> None:
    assert [event.kind for event in _events(runs["stalled"])][-2:] == [EventKind.STALL, EventKind.STATE]


def test_no_scenario_says_it_runs(runs: dict[str, RunFolder]) -> None:
    for folder in runs.values():
        with LogReader(folder.log) as reader:
            assert RunState(reader.run().state) not in (RunState.RUNNING, RunState.LAUNCHING)


def test_the_demo_never_imports_torch() -> None:
    code = "import sys, harness.demo; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_of_all_scenarios_the_first_of_the_catalog_is_the_newest_run(tmp_path: Path) -> None:
    home = Home(tmp_path)
    written = [folder.run_id for folder in write_all(home, steps=1)]
    assert [folder.run_id for folder in home.runs()] == written


_LEAKING = {"leak": LeakSeries.ALLOCATED, "fragmentation": LeakSeries.FRAGMENTATION}


@pytest.mark.parametrize("key", SCENARIOS)
def test_the_leak_detector_finds_what_the_scenario_is_named_for_and_nothing_else(
    runs: dict[str, RunFolder], key: str
) -> None:
    with LogReader(runs[key].log) as reader:
        last = {row.series: row for row in reader.memory.leaks()}
    called = [row for row in last.values() if row.verdict == LeakVerdict.LEAK]
    assert [row.series for row in called] == ([_LEAKING[key]] if key in _LEAKING else [])


def test_a_simulated_leak_is_told_when_it_is_found(runs: dict[str, RunFolder]) -> None:
    (event,) = (event for event in _events(runs["leak"]) if event.kind == EventKind.LEAK)
    assert event.step < 400
    assert json.loads(event.detail)["bytes_per_step"] == pytest.approx(11 * _GIB / 4_000, rel=0.1)
    assert "memory runs out in about" in event.message
