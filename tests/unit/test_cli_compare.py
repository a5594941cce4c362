"""`stepscope compare`: the tables, JSON, gates and exit codes."""

import json

import pytest

from harness.cli import main
from tests.compare_factories import STEP_NS, a_logged_run


def test_two_runs_are_compared_by_figures_and_settings(capsys: pytest.CaptureFixture[str]) -> None:
    a_logged_run("before")
    a_logged_run("after", 1.2 * STEP_NS, batch_size=64)
    assert main(["compare", "before", "after"]) == 0
    shown = capsys.readouterr().out
    assert "'after' was slower than 'before'" in shown
    row = next(line for line in shown.splitlines() if line.startswith("batch_size"))
    assert row.split()[2] == "64"
    assert main(["compare", "before", "after", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["runs"][1]["figures"]["peak_reserved"] == 20_000_000
    assert list(printed["settings_that_differ"]["batch_size"].values())[1] == 64


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
