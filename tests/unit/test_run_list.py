"""Search, filters and order of a list of runs, in analysis and in the shell."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.run_list import (
    STATES,
    RunFilter,
    SortKey,
    differing_settings,
    duration_ns,
    sort_entries,
)
from harness.cli import main
from harness.demo.writing import write
from harness.records.entry import RunEntry
from harness.store.home import Home
from harness.store.labels import change_tags, set_note
from tests.entry_factories import an_entry


def _names(entries: list[RunEntry]) -> list[str]:
    return [entry.name for entry in entries]


RUNS = [
    an_entry("a", model="cnn", tags=("best", "paper"), note="Grüße an Ada"),
    an_entry("b", model="mlp", state="running", device="cuda:0", tags=("paper",)),
    an_entry("c", script="train.py", state="failed"),
    an_entry("d", problem="The log is damaged."),
]


@pytest.mark.parametrize(
    ("criteria", "names"),
    [
        ({}, ["a", "b", "c", "d"]),
        ({"states": ["running", "failed"]}, ["b", "c"]),
        ({"states": ["unreadable"]}, ["d"]),
        ({"states": ["finished"]}, ["a"]),
        ({"models": ["cnn", "train.py"]}, ["a", "c"]),
        ({"devices": ["cuda:0"]}, ["b"]),
        ({"tags": ["paper"]}, ["a", "b"]),
        ({"tags": ["paper", "best"]}, ["a"]),
        ({"search": "GRÜSSE ada"}, ["a"]),
        ({"search": "cuda paper"}, ["b"]),
        ({"search": "train.py"}, ["c"]),
        ({"search": "paper", "states": ["finished"]}, ["a"]),
        ({"search": "nothing"}, []),
    ],
)
def test_a_run_is_listed_when_it_meets_all_criteria(criteria: dict[str, Any], names: list[str]) -> None:
    assert _names(RunFilter(**criteria).select(RUNS)) == names


def test_runs_without_a_figure_are_last_in_both_directions() -> None:
    runs = [
        an_entry("one", loss=1.0),
        an_entry("none"),
        an_entry("nan", loss=math.nan),
        an_entry("two", loss=2.0),
    ]
    assert _names(sort_entries(runs, SortKey.LOSS)) == ["two", "one", "none", "nan"]
    assert _names(sort_entries(runs, SortKey.LOSS, is_descending=False)) == ["one", "two", "none", "nan"]


@pytest.mark.parametrize("key", SortKey)
def test_every_figure_sorts_any_runs(key: SortKey) -> None:
    assert sorted(_names(sort_entries(RUNS, key))) == ["a", "b", "c", "d"]


def test_settings_that_differ_are_named_and_those_a_run_lacks_do_not_count() -> None:
    runs = [
        an_entry("a", settings={"model": "cnn", "batch_size": 8, "amp": "off", "seed": 1}),
        an_entry("b", settings={"model": "mlp", "batch_size": 8, "amp": "bf16"}),
        an_entry("c"),
    ]
    assert differing_settings(runs) == ["amp"]
    assert differing_settings(runs[:1]) == []


def test_an_active_run_lasts_until_now() -> None:
    run = an_entry("a", state="running", started_unix_ns=10)
    assert duration_ns(run) is None
    assert duration_ns(run, now_unix_ns=25) == 15
    assert duration_ns(an_entry("b", started_unix_ns=10, ended_unix_ns=12), now_unix_ns=25) == 2
    assert duration_ns(an_entry("b", started_unix_ns=12, ended_unix_ns=10)) is None


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("STEPSCOPE_HOME", str(tmp_path))
    home = Home(tmp_path)
    steady, oom = write("steady", home, steps=20), write("oom", home, steps=20)
    change_tags(steady, ["best"])
    set_note(oom, "too large")
    return home


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("", ["demo: oom", "demo: steady"]),
        ("--state finished", ["demo: steady"]),
        ("--state out_of_memory --state finished", ["demo: oom", "demo: steady"]),
        ("--model transformer --device cuda:0", ["demo: oom", "demo: steady"]),
        ("--tag best", ["demo: steady"]),
        ("--search LARGE", ["demo: oom"]),
        ("--limit 1", ["demo: oom"]),
        ("--model mlp", []),
    ],
)
def test_the_shell_lists_what_meets_the_criteria(
    words: str, names: list[str], home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", "--json", *words.split()]) == 0
    assert [run["name"] for run in json.loads(capsys.readouterr().out)] == names
    assert main(["list", *words.split()]) == 0
    printed = capsys.readouterr()
    assert all(name in printed.out for name in names)
    assert names or "None of 2 runs meets these criteria." in printed.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--state", "dead"], f"There is no state 'dead'; choose from: {', '.join(STATES)}."),
        (["--limit", "0"], "--limit cannot be 0; it takes a whole number, at least 1."),
    ],
)
def test_an_unknown_criterion_is_one_sentence(
    words: list[str], sentence: str, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_a_list_as_json_has_one_line_per_run_and_no_number_that_json_lacks(
    home: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "harness.cli.runs.RunIndex.entries",
        lambda *_: [an_entry("a", loss=math.inf), an_entry("b", loss=1.0)],
    )
    assert main(["list", "--json"]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 4
    assert [run["loss"] for run in json.loads(out)] == ["Infinity", 1.0]
