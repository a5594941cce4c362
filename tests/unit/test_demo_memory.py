"""Test what a simulated run says about its memory agrees with its own steps, and with itself."""

from pathlib import Path

import pytest

from harness.analysis.memory.waterfall import MemoryPart, waterfall
from harness.analysis.oom.report import OomVerdict, report_from_json
from harness.analysis.oom.text import render
from harness.demo import write
from harness.demo.machine import PARAMETERS
from harness.records.memory import SnapshotReason
from harness.store.home import Home
from harness.store.reader import LogReader


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("home"))


@pytest.mark.slow
@pytest.mark.parametrize("key", ["steady", "leak", "fragmentation", "oom"])
def test_samples_come_every_two_seconds_and_sum_to_the_card(home: Home, key: str) -> None:
    with LogReader(write(key, home, steps=900).log) as reader:
        seconds = reader.last_steps(1)[0].t_ns / 1e9
        samples = reader.memory.samples(0, 10**9)
        (modules, *_) = (reader.memory.modules(row.snapshot_id) for row in reader.memory.snapshots())
    assert len(samples) == pytest.approx(seconds / 2, abs=2)
    for sample in samples:
        result = waterfall(sample, modules, is_cpu=False)
        assert result is not None
        assert result.disputed_bytes == 0
        assert {MemoryPart.WEIGHTS, MemoryPart.GRADIENTS, MemoryPart.OPTIMIZER} <= {
            bar.place for bar in result.bars
        }


def test_the_census_counts_every_parameter_once(home: Home) -> None:
    with LogReader(write("steady", home, steps=20).log) as reader:
        (snapshot,) = reader.memory.snapshots()
        modules = reader.memory.modules(snapshot.snapshot_id)
    assert snapshot.reason == SnapshotReason.START
    assert sum(row.parameter_bytes for row in modules) == 4 * PARAMETERS
    assert {row.activation_bytes for row in modules} == {None}


@pytest.mark.slow
def test_a_snapshot_explains_what_was_allocated_and_the_leak_comes_first(home: Home) -> None:
    with LogReader(write("leak", home).log) as reader:
        start, request, last = reader.memory.snapshots()
        sites = reader.memory.allocations(last.snapshot_id)
        before = reader.memory.allocations(request.snapshot_id)
    assert start.explained_bytes is None
    assert last.reason == SnapshotReason.LEAK
    assert sum(row.held_bytes for row in sites) == last.allocated_bytes == last.explained_bytes
    assert sites[0].site == before[0].site == "train.py:88 train_step"
    assert (sites[0].grown_bytes or 0) > 0
    assert [row.rank for row in sites] == list(range(1, len(sites) + 1))


def test_running_out_of_memory_leaves_a_report_that_explains_it(home: Home) -> None:
    with LogReader(write("oom", home, steps=300).log) as reader:
        (row,) = reader.memory.oom_reports()
    report = report_from_json(row.report)
    assert report.verdict is OomVerdict.CAP
    assert row.step == report.facts.step == 301
    assert len(report.facts.steps) == 50
    assert [peak.batch_size for peak in report.facts.peaks] == [32, 48, 72]
    assert report.facts.change is not None
    assert report.facts.change.steps_ago == 0
    assert report.counterfactuals
    assert "Batch 72 peaked at" in render(report)


def test_one_step_is_enough_for_a_sample_and_too_little_for_a_census(home: Home, tmp_path: Path) -> None:
    with LogReader(write("one-step", home).log) as reader:
        assert reader.memory.latest_sample() is not None
        assert reader.memory.snapshots() == []
