"""`stepscope demo` in the shell."""

import os

import pytest

from harness.cli import main
from harness.store.home import Home


def test_the_demo_writes_simulated_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "steady", "lost", "--steps", "60"]) == 0
    assert capsys.readouterr().out.count("simulated") == 2
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    assert "finished (simulated)" in printed or "running (simulated)" in printed
    assert "lost (simulated)" in printed
    assert main(["pause", "latest"]) == 1
    assert "is simulated" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["demo stedy", "demo steady --steps 0", "demo --steps many"])
def test_a_demo_that_cannot_be_is_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: object = main(words.split())
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert Home.locate(None, os.environ).runs() == []
