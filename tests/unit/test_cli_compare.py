"""`stepscope compare`: the tables, JSON, gates and exit codes."""

import json

import pytest

from harness.cli import main
from tests.compare_factories import STEP_NS, a_logged_run


def test_two_runs_are_compared_by_figures_and_settings(capsys: pytest.CaptureFixture[str]) -> None:
    a_logged_run("before")
    a_logged_run("after", 1.2 * STEP_NS, batch_size=64)
    assert main(["compare", "before", "after"]) == 0
    text = capsys.readouterr().out
    assert "'after' was slower than 'before'" in text
    row = next(line for line in text.splitlines() if line.startswith("batch_size"))
    assert row.split()[2] == "64"
    assert main(["compare", "before", "after", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["runs"][1]["figures"]["peak_reserved"] == 20_000_000
    assert list(printed["settings_that_differ"]["batch_size"].values())[1] == 64


@pytest.mark.slow
def test_losses_are_compared_after_the_same_number_of_samples(capsys: pytest.CaptureFixture[str]) -> None:
    # The loss is 1 / step in both, so that after the same samples twice the batch has twice the loss.
    a_logged_run("small", count=4000, change=lambda row: row._replace(loss=1 / row.step))
    a_logged_run("large", count=4000, change=lambda row: row._replace(loss=1 / row.step, samples=64))
    assert main(["compare", "small", "large", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    small, large = (run["figures"]["loss_at_equal_samples"] for run in printed["runs"])
    assert [run["equal_samples"] for run in printed["runs"]] == [4000 * 32] * 2
    # The mean of 1 / step over the last 5 % of 4,000 and of 2,000 steps.
    assert small == pytest.approx(1 / 3900, rel=0.01)
    assert large == pytest.approx(1 / 1950, rel=0.01)
    assert "loss after 128,000 samples" in printed["comparisons"][0]["verdict"]


def test_the_loss_is_n_a_where_a_run_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    a_logged_run("before")
    a_logged_run("without", change=lambda row: row._replace(loss=None))
    assert main(["compare", "before", "without", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["runs"][1]["figures"]["loss_at_equal_samples"] is None
    assert "loss after" not in printed["comparisons"][0]["verdict"]


def test_a_phase_that_one_run_did_not_measure_is_n_a(capsys: pytest.CaptureFixture[str]) -> None:
    a_logged_run("before")
    a_logged_run("without", change=lambda row: row._replace(data_wait_ns=0))
    assert main(["compare", "before", "without"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (row,) = (line.split() for line in lines if line.startswith("data wait"))
    assert row[2] != "n/a"
    assert row[-1] == "n/a"


@pytest.mark.parametrize(("gate", "code"), [("step_time>+5%", 4), ("step_time>+50%", 0), ("mfu<-1%", 1)])
def test_a_gate_decides_the_exit_code(gate: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    a_logged_run("before")
    a_logged_run("after", 1.2 * STEP_NS)
    assert main(["compare", "before", "after", "--fail-if", gate]) == code
    if code == 1:
        assert "MFU is n/a in 'before'" in capsys.readouterr().err


def test_a_run_folder_is_compared_by_its_path(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = a_logged_run("before"), a_logged_run("after")
    moved = first.path.rename(first.path.parents[1] / "elsewhere")
    assert main(["compare", str(moved), second.run_id]) == 0
    assert "'before'" in capsys.readouterr().out


def test_runs_that_cannot_be_compared_end_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    a_logged_run("before")
    a_logged_run("empty", count=0)
    damaged = a_logged_run("damaged")
    damaged.log.write_bytes(b"garbage")
    cases = {
        ("before",): (2, "One run is no comparison"),
        ("before", "before"): (2, "The run 'before' is named twice"),
        ("before", "nobody"): (2, "There is no run 'nobody'"),
        ("before", "empty"): (1, "no figure in common: 'empty' has no step"),
        ("before", "damaged"): (1, "not a Stepscope log"),
    }
    for runs, (code, sentence) in cases.items():
        assert main(["compare", *runs]) == code
        assert sentence in capsys.readouterr().err
