"""The step time in the output of `stepscope show`."""

import os

import pytest

from harness.cli import main
from harness.records.run import StepFlag
from harness.settings.resolve import resolve
from harness.store.appender import LogAppender
from harness.store.home import Home
from tests.store_factories import a_run, steps


@pytest.mark.parametrize(
    ("warm_up", "steady", "sentence"),
    [
        (0, 1, "2.0 ms, that of the only step"),
        (3, 0, "2.0 ms, the median of the last 3 steps, none of which is in a steady state"),
        (5, 1, "2.0 ms, the median of 1 steady-state step among the last 6 steps"),
    ],
)
def test_show_says_which_steps_the_step_time_is_of(
    warm_up: int, steady: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Home.locate(None, os.environ).create("short", resolve({"model": "mlp"}), 0)
    rows = [row._replace(flags=StepFlag.WARM_UP) for row in steps(1, warm_up)]
    with LogAppender(folder.log, a_run(folder.run_id, "short")) as appender:
        appender.append([*rows, *steps(warm_up + 1, warm_up + steady)])
    assert main(["show", "short"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("step time"))
    assert line.removeprefix("step time").strip() == sentence
