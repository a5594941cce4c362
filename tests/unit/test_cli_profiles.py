"""`stepscope profile` and `stepscope do RUN profile`, without a training process."""

import json
from pathlib import Path

import pytest

from harness.cli import main
from harness.demo import write
from harness.records.profile import ProfileReason
from harness.settings.resolve import resolve
from harness.store.appender import LogAppender
from harness.store.home import Home
from harness.watch.capture.profile_rows import failure
from tests.store_factories import a_run


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a simulated run that has a profile before AMP and one after."""
    home = Home(tmp_path_factory.mktemp("home"))
    write("amp", home, steps=600)
    return home.path


@pytest.fixture
def empty(tmp_path: Path) -> tuple[Home, str]:
    """A home with a run without profiles."""
    home = Home(tmp_path)
    folder = home.create("plain", resolve({"model": "mlp"}), 1)
    with LogAppender(folder.log, a_run(folder.run_id, "plain")):
        pass
    return home, folder.run_id


def said(capsys: pytest.CaptureFixture[str], home: Path, *words: str) -> str:
    assert main([*words[:1], "--home", str(home), *words[1:]]) == 0
    return capsys.readouterr().out


def test_the_newest_profile_is_shown_by_kind_with_idle_time_last(
    simulated: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = said(capsys, simulated, "profile", "latest")
    assert "Profile 2:" in out
    assert "matrix multiply" in out
    assert out.splitlines()[-2].startswith("idle")
    assert out.splitlines()[-1] == "Left out: It is simulated: there is no trace."


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("operator", "aten::addmm"),
        ("module", "blocks.11.feed_forward"),
        ("stack", "take_step › harness/models"),
    ],
)
def test_it_is_shown_by_operator_module_and_stack_too(
    simulated: Path, capsys: pytest.CaptureFixture[str], by: str, expected: str
) -> None:
    assert expected in said(capsys, simulated, "profile", "latest", "1", "--by", by)
    assert "--all shows them" in said(capsys, simulated, "profile", "latest", "1", "--by", "module")
    assert "--all shows them" not in said(capsys, simulated, "profile", "latest", "1", "--by", by, "--all")


def test_two_profiles_are_compared_under_what_was_changed_between_them(
    simulated: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = said(capsys, simulated, "profile", "latest", "1", "2")
    assert out.startswith("After AMP bf16 a step takes 4")
    assert "most of the difference is in matrix multiply (−5" in out
    document = json.loads(said(capsys, simulated, "profile", "latest", "1", "2", "--by", "module", "--json"))
    assert (document["before"], document["after"], document["by"]) == (1, 2, "module")
    assert document["step"]["percent"] < -30


def test_json_has_the_rows_as_they_are(simulated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(said(capsys, simulated, "profile", "latest", "--json"))
    assert [row["profile_id"] for row in document["profiles"]] == [1, 2]
    assert document["of"] == 2
    assert sum(row["share"] for row in document["kinds"]) == pytest.approx(1)
    assert all(document[part] for part in ("operators", "modules", "stacks"))


def test_show_names_the_profiles(simulated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "profile 2 " in said(capsys, simulated, "show", "latest")
    document = json.loads(said(capsys, simulated, "show", "latest", "--json"))
    assert [row["profile_id"] for row in document["profiles"]] == [1, 2]


def test_a_run_without_profiles_says_how_to_take_one(
    empty: tuple[Home, str], capsys: pytest.CaptureFixture[str]
) -> None:
    home, run_id = empty
    assert main(["profile", run_id, "--home", str(home.path)]) == 0
    assert "stepscope do RUN profile" in capsys.readouterr().err
    document = json.loads(said(capsys, home.path, "profile", run_id, "--json"))
    assert (document["profiles"], document["of"]) == ([], None)


def test_a_profile_that_failed_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Home(tmp_path).create("failed", resolve({"model": "mlp"}), 1)
    with LogAppender(folder.log, a_run(folder.run_id, "failed")) as appender:
        appender.append(rows=failure(1, 7, 1, ProfileReason.SCHEDULE, 5, "CUPTI is missing.", None))
    out = said(capsys, tmp_path, "profile", "latest")
    assert "The profile is unavailable, because CUPTI is missing." in out


@pytest.mark.parametrize(
    ("words", "expected"), [(["9"], "no profile 9 in this run; it has 1, 2"), (["1", "9"], "no profile 9")]
)
def test_what_there_is_not_is_said(
    simulated: Path, words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "--home", str(simulated), "latest", *words]) == 2
    assert expected in capsys.readouterr().err


def test_memory_and_stacks_are_for_profiles_alone(
    empty: tuple[Home, str], capsys: pytest.CaptureFixture[str]
) -> None:
    home, run_id = empty
    with pytest.raises(SystemExit):
        main(["do", "--home", str(home.path), run_id, "snapshot", "--stacks"])
    assert "--stacks is for profiles" in capsys.readouterr().err


def test_the_options_are_sent_with_the_command(
    empty: tuple[Home, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, run_id = empty
    sent: list[object] = []
    monkeypatch.setattr(
        "harness.supervisor.Supervisor.send",
        lambda _self, _folder, kind, payload, source: sent.append(payload),
    )
    main(["do", "--home", str(home.path), run_id, "profile", "--steps", "2", "--memory", "--wait", "0"])
    assert sent == [{"steps": 2, "memory": True}]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("profile plain 99", "There is no profile 99. This run has no profile;"),
        ("profile plain 1 2 --json", "There is no profile 1. This run has no profile;"),
        ("snapshots plain --of 99", "There is no snapshot 99. This run has no snapshot;"),
    ],
)
def test_a_number_that_a_run_without_any_does_not_have_is_refused(
    empty: tuple[Home, str], capsys: pytest.CaptureFixture[str], words: str, sentence: str
) -> None:
    assert main([*words.split(), "--home", str(empty[0].path)]) == 2
    document = capsys.readouterr()
    assert document.out == ""
    assert sentence in document.err
