"""The results of `make gpu-check` on disk: nothing is lost to a crash, and a later call continues."""

from pathlib import Path

import pytest

from tests.gpu.context import Context
from tests.gpu.journal import ResultsFile, StageState


@pytest.fixture
def results(tmp_path: Path) -> ResultsFile:
    return ResultsFile(tmp_path / "card-20260101.jsonl")


def test_values_and_states_read_back(results: ResultsFile) -> None:
    results.session({"card": "H100"})
    results.begin("texts", "cap")
    results.value("texts", "cap", {"text": "CUDA out of memory"})
    results.state("texts", StageState.FINISHED, "", 3.25)
    result = results.read()
    assert result.sessions == [{"card": "H100"}]
    stage = result.stage("texts")
    assert stage.values == {"cap": {"text": "CUDA out of memory"}}
    assert (stage.state, stage.open_item, stage.seconds) == (StageState.FINISHED, None, 3.2)
    assert result.stage("nvml").state is None


def test_a_line_that_a_crash_cut_short_costs_that_line_alone(results: ResultsFile) -> None:
    results.value("worth", "mlp", 1)
    with results.path.open("ab") as file:
        file.write(b'{"stage": "worth", "item": "cnn", "val')
    results.value("worth", "lstm", 2)
    assert results.read().stage("worth").values == {"mlp": 1, "lstm": 2}


def test_an_item_that_began_and_did_not_end_is_known(results: ResultsFile) -> None:
    results.begin("worth", "mlp")
    assert results.read().stage("worth").open_item == "mlp"
    results.failure("worth", "mlp", "killed by SIGSEGV")
    stage = results.read().stage("worth")
    assert (stage.open_item, stage.done) == (None, {"mlp"})


def test_a_restart_forgets_a_stage_and_no_other(results: ResultsFile) -> None:
    results.value("worth", "mlp", 1)
    results.value("texts", "cap", 1)
    results.restart("worth")
    result = results.read()
    assert result.stage("worth").values == {}
    assert result.stage("texts").values == {"cap": 1}


def test_a_stage_continues_behind_what_is_done(results: ResultsFile) -> None:
    results.value("worth", "mlp", 1)
    results.failure("worth", "cnn", "killed by SIGSEGV")
    context = Context("worth", results)
    assert list(context.pending(["mlp", "cnn", "lstm"])) == ["lstm"]
    assert results.read().stage("worth").open_item == "lstm"


def test_a_stage_begins_no_item_when_its_time_is_over(results: ResultsFile) -> None:
    now_s = 0.0
    context = Context("worth", results, seconds=10, clock_s=lambda: now_s)
    taken = []
    for item in context.pending(["mlp", "cnn", "lstm"]):
        taken.append(item)
        now_s += 6
        context.put(item, now_s)
    assert taken == ["mlp", "cnn"]
    assert not context.has_time
