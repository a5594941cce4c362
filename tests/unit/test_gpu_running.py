"""Stages of `make gpu-check` in processes of their own: a crash costs one item, and time is kept."""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from tests.gpu.journal import ResultsFile, StageState
from tests.gpu.running import Exit, Order, Runner, needs_run, run_process
from tests.gpu.stage import TIME_IS_OVER
from tests.gpu.stages import Stage

ONE = Stage("one", "One?", "one", 1, 100, 10)
TWO = Stage("two", "Two?", "two", 0, 100, 10)


class Processes:
    """Stands in for processes: each start takes some time and does what comes next in a list."""

    def __init__(self, results: ResultsFile, *acts: Callable[[str], Exit]) -> None:
        self.results = results
        self.acts = list(acts)
        self.now_s = 0.0
        self.started: list[str] = []
        self.takes_s = 10.0

    def start(self, command: Sequence[str], timeout_s: float) -> Exit:
        key = command[3]
        self.started.append(key)
        self.now_s += min(self.takes_s, timeout_s)
        return self.acts.pop(0)(key)

    def runner(self, within_s: float = 1000, device: str = "cuda") -> Runner:
        return Runner(self.results, Order(device, 1, within_s), self.start, lambda: self.now_s)


@pytest.fixture
def results(tmp_path: Path) -> ResultsFile:
    return ResultsFile(tmp_path / "card.jsonl")


def ends_well(_key: str) -> Exit:
    return Exit(0, "")


def test_stages_run_in_the_order_of_their_rank(results: ResultsFile) -> None:
    processes = Processes(results, ends_well, ends_well)
    pages: list[str] = []
    processes.runner().run([ONE, TWO], lambda stage: pages.append(stage.key))
    assert processes.started == pages == ["two", "one"]
    assert not needs_run(results.read().stage("one"))


def test_a_crash_is_named_and_costs_its_item_alone(results: ResultsFile) -> None:
    def crashes(key: str) -> Exit:
        results.value(key, "first", 1)
        results.begin(key, "second")
        return Exit(-11, "Fatal Python error: Segmentation fault")

    def goes_on(key: str) -> Exit:
        assert results.read().stage(key).done == {"first", "second"}
        results.value(key, "third", 3)
        return Exit(0, "")

    processes = Processes(results, crashes, goes_on, ends_well)
    processes.runner().run([ONE, TWO], lambda _: None)
    stage = results.read().stage("two")
    assert stage.values == {"first": 1, "third": 3}
    assert stage.failures == {"second": "killed by SIGSEGV: Fatal Python error: Segmentation fault"}
    assert stage.state is StageState.FINISHED
    assert processes.started == ["two", "two", "one"]


def test_an_error_outside_of_items_ends_the_stage_and_no_other(results: ResultsFile) -> None:
    processes = Processes(results, lambda _: Exit(1, "ImportError: no nvml\n"), ends_well)
    processes.runner().run([ONE, TWO], lambda _: None)
    result = results.read()
    assert (result.stage("two").state, result.stage("two").reason) == (
        StageState.DIED,
        "ImportError: no nvml",
    )
    assert result.stage("one").state is StageState.FINISHED


@pytest.mark.parametrize("code", [TIME_IS_OVER, None])
def test_a_stage_whose_time_is_over_is_left_for_the_next_call(results: ResultsFile, code: int | None) -> None:
    def is_cut(key: str) -> Exit:
        results.value(key, "first", 1)
        results.begin(key, "second")
        return Exit(code, "")

    Processes(results, is_cut).runner().run([ONE], lambda _: None)
    stage = results.read().stage("one")
    assert needs_run(stage)
    assert (stage.state, stage.done) == (StageState.UNFINISHED, {"first"})
    assert ("during second" in stage.reason) == (code is None)


def test_no_stage_begins_without_time(results: ResultsFile) -> None:
    processes = Processes(results, ends_well, ends_well)
    processes.takes_s = 60
    processes.runner(within_s=70).run([ONE, TWO], lambda _: None)
    assert processes.started == ["two"]
    assert results.read().stage("one").state is None


def test_what_needs_a_gpu_is_not_tried_on_the_cpu(results: ResultsFile) -> None:
    Processes(results).runner(device="cpu").run([ONE], lambda _: None)
    assert results.read().stage("one").reason == "needs a CUDA device"


_LEAVES_A_SESSION = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print("words on the way", child.pid, file=sys.stderr, flush=True)
"""


@pytest.mark.slow
def test_a_process_that_takes_too_long_is_killed_with_all_it_started() -> None:
    code = f"{_LEAVES_A_SESSION}\nimport time; time.sleep(60)"
    began_s = time.monotonic()
    result = run_process([sys.executable, "-c", code], 2.0)
    assert time.monotonic() - began_s < 30
    assert result.code is None
    *words, pid = result.stderr.split()
    assert words == ["words", "on", "the", "way"]
    assert not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE


def test_a_process_that_ends_by_itself_is_told_with_its_code() -> None:
    assert run_process([sys.executable, "-c", "raise SystemExit(7)"], 60.0).code == 7
