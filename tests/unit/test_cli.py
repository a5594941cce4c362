"""The shell without a training process: what it prints, where, and with which exit code."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.analysis.oom.explain import explain
from harness.analysis.oom.report import to_json
from harness.cli import main
from harness.records.memory import OomReportRow
from harness.records.run import EventKind
from harness.settings.resolve import resolve
from harness.store.appender import LogAppender
from harness.store.folder import RunFolder
from harness.store.home import Home
from tests.oom_factories import some_facts
from tests.store_factories import a_run, an_event, steps, write_log

LONG_AGO_UNIX_NS = time.time_ns() - 10**12


def a_home() -> Home:
    return Home.locate(None, os.environ)


def an_ended_run(name: str, age_ns: int = 0) -> RunFolder:
    settings = resolve({"model": "mlp"})
    folder = a_home().create(name, settings, LONG_AGO_UNIX_NS - age_ns)
    run = a_run(folder.run_id, name)._replace(
        settings=settings.model_dump_json(), state="finished", state_message="Took all 20 steps."
    )
    with LogAppender(folder.log, run) as appender:
        appender.append(steps(1, 20), [an_event("[bold]Something[/bold] happened.")])
    return folder


def a_report(step: int) -> OomReportRow:
    report = explain(some_facts(step=step), outcome="The run ends.")
    return OomReportRow(1, step, report.outcome, to_json(report))


def test_show_prints_the_newest_report_on_memory_and_json_carries_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = a_home().create("ran-out", resolve({"model": "mlp"}), LONG_AGO_UNIX_NS)
    with LogAppender(folder.log, a_run(folder.run_id, "ran-out")) as appender:
        appender.append(steps(1, 20), [a_report(20), a_report(21)])
    assert main(["show", "ran-out"]) == 0
    text = capsys.readouterr().out
    assert "Out of memory in step 21 on Test device: simply too big" in text
    assert "Out of memory in step 20" not in text
    assert "Line        harness/models/transformer.py:31 forward" in text
    assert f"This is the last of 2 reports; all are in {folder.captures}." in text
    assert main(["show", "ran-out", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)["oom_reports"]
    assert [report["step"] for report in printed] == [20, 21]
    assert printed[0]["report"]["facts"]["request"]["module"] == "blocks.3.mlp"


def test_many_evaluations_hide_no_other_event(capsys: pytest.CaptureFixture[str]) -> None:
    folder = a_home().create("evaluates", resolve({"model": "mlp"}), LONG_AGO_UNIX_NS)
    evaluation = an_event("Evaluation took 1.0 s.", 20)._replace(kind=EventKind.EVALUATION)
    with LogAppender(folder.log, a_run(folder.run_id, "evaluates")) as appender:
        appender.append(steps(1, 20), [an_event("AMP is bf16 now.", 3), *[evaluation] * 30])
    assert main(["show", "evaluates"]) == 0
    text = capsys.readouterr().out
    assert "AMP is bf16 now." in text
    assert text.count("Evaluation took") == 1


def test_an_incompatible_report_is_shown_by_its_outcome(capsys: pytest.CaptureFixture[str]) -> None:
    folder = a_home().create("newer", resolve({"model": "mlp"}), LONG_AGO_UNIX_NS)
    with LogAppender(folder.log, a_run(folder.run_id, "newer")) as appender:
        appender.append(steps(1, 20), [OomReportRow(1, 20, "Rolled \x1b[31mback.", "{}")])
    assert main(["show", "newer"]) == 0
    assert "Rolled \\x1b[31mback." in capsys.readouterr().out


def shell(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness", *words], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "the following arguments are required: COMMAND"),
        ("lst", "there is no command 'lst'; did you mean 'list'?"),
        ("run --bach-size 3", "there is no option '--bach-size'; did you mean '--batch-size'?"),
        ("run mlp cnn", "'cnn' is one word too many"),
        ("run mlp max_steps=3", "'max_steps=3' is no option; did you mean '--max-steps 3'?"),
        ("run mlp --model cnn", "Two models are given"),
        ("run --batch-size x", "batch_size cannot be 'x': it takes a whole number"),
        ("run --batch-size 0", "batch_size cannot be 0; allowed: at least 1"),
        ("run --learning-rate nan", "learning_rate cannot be nan"),
        ("run --amp fp8", "amp cannot be 'fp8'; allowed: off, bf16, fp16."),
        ("run mpl", "no model 'mpl'"),
        ("run mlp --preset huge", "mlp has no preset 'huge'; choose one of: laptop"),
        ("run mlp --data nope", "'nope'"),
        ("run mlp --data stdlib-text", "mlp trains on images"),
        ("run mlp --data images", "needs a folder of your own"),
        ("run mlp --data images --data-path /no/such", "There is no file or folder '/no/such'"),
        ("run mlp --device tpu", "device cannot be 'tpu'; allowed: auto, cpu, cuda:N"),
        ("run mlp --name ", "cannot be named ''"),
        ("show nobody", "There is no run 'nobody'"),
        ("show latest", "There are no runs in"),
        ("set nobody batch_size", "not of the form name=value"),
        ("set nobody batch_size=1 batch_size=2", "given twice"),
        ("set nobody dropout=0.3", "There is no run 'nobody'"),
        ("set nobody batch_size=1 --wait soon", "--wait cannot be 'soon'; it takes a number."),
        (
            "set nobody batch_size=1 --wait -1",
            "--wait cannot be -1; it takes a number of seconds, 0 or more.",
        ),
        ("set nobody batch_size=1 --wait nan", "--wait cannot be nan"),
        ("tune --resume nope", "There is no tune yet; start one with `stepscope tune`."),
        ("run mlp --nproc two", "--nproc cannot be 'two'; it takes a whole number."),
        ("do nobody dance", "there is no action 'dance'"),
        ("delete nobody", "There is no run 'nobody'"),
    ],
)
def test_a_mistake_gets_one_sentence_and_exit_code_2(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(words.split(" ") if words else [])
    except SystemExit as stop:
        code = stop.code
    printed = capsys.readouterr()
    assert code == 2
    assert sentence in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert a_home().runs() == []


def test_a_bad_value_in_the_environment_names_the_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for value, sentence in (("x", "cannot be 'x'"), ("0", "cannot be 0")):
        monkeypatch.setenv("STEPSCOPE_BATCH_SIZE", value)
        assert main(["run", "mlp"]) == 2
        printed = capsys.readouterr().err
        assert "STEPSCOPE_BATCH_SIZE" in printed
        assert sentence in printed


def test_a_home_that_cannot_be_used_fails_with_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    for command in (["run", "mlp"], ["list"]):
        assert main([*command, "--home", str(tmp_path / "file")]) == 1
        assert "file cannot be the home" in capsys.readouterr().err


def test_no_runs_yet_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert "stepscope run" in capsys.readouterr().err


def test_names_are_text_and_never_markup(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("[red]x[/red]", "<b>bold</b>", ":smile: [link=x]", "数字 [/]"):
        an_ended_run(name)
        assert main(["list"]) == 0
        assert name in capsys.readouterr().out
        assert main(["show", name]) == 0
        printed = capsys.readouterr().out
        assert name in printed
        assert "[bold]Something[/bold] happened." in printed


def test_list_and_show_tell_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    folder = an_ended_run("mine")
    assert main(["list"]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    for cell in ("mine", folder.run_id, "finished", "mlp laptop", "20", "2.0 ms", "14.3 MiB"):
        assert cell in line
    assert main(["show", "mine"]) == 0
    printed = capsys.readouterr().out
    assert "finished: Took all 20 steps." in printed
    assert "0.5" in printed
    assert "2.0 ms, the median of the last 20 steps\n" in printed
    assert "samples/s, over the same steps" in printed
    assert "2.0 ms / 2.0 ms / 2.0 ms over 20 steps; on the CPU data wait 5.0 %" in printed
    assert "16,000 samples/s, FLOP/s n/a, MFU n/a" in printed


def test_deleted_runs_are_listed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    folder = an_ended_run("mine")
    assert main(["delete", "mine", "mine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"deleted": [folder.run_id]}
    assert not folder.path.exists()


def test_json_is_json_with_base_units(capsys: pytest.CaptureFixture[str]) -> None:
    folder = an_ended_run("mine")
    assert main(["list", "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)
    assert run["run_id"] == folder.run_id
    assert run["state"] == "finished"
    assert run["settings"]["model"] == "mlp"
    assert run["step_ns"] == pytest.approx(2_000_003, abs=3)
    assert main(["show", "mine", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["events"][0]["label"] == "something"
    assert document["timing"]["cpu"]["step_ns"]["p50"] == pytest.approx(2_000_003, abs=3)
    assert document["timing"]["cpu"]["parts"]["data_wait"]["share"] == pytest.approx(0.05, abs=1e-4)
    assert (document["timing"]["device"], document["timing"]["mfu"]) == (None, None)
    assert main(["models", "--json"]) == 0
    assert {"mlp", "cnn"} <= {model["key"] for model in json.loads(capsys.readouterr().out)}
    assert main(["settings", "--json"]) == 0
    assert any(s["variable"] == "STEPSCOPE_AMP" for s in json.loads(capsys.readouterr().out))


def test_a_loss_that_is_not_a_number_is_still_json(capsys: pytest.CaptureFixture[str]) -> None:
    folder = a_home().create("nan", resolve({"model": "mlp"}), LONG_AGO_UNIX_NS)
    row = steps(1, 1)[0]._replace(loss=None, loss_state=1)
    write_log(folder.log, [row])
    assert main(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["loss"] == "NaN"


def test_an_unreadable_run_is_listed_shown_and_deleted(capsys: pytest.CaptureFixture[str]) -> None:
    folder = an_ended_run("broken")
    folder.log.write_bytes(b"garbage" * 100)
    assert main(["list"]) == 0
    assert "unreadable" in capsys.readouterr().out
    assert main(["show", "broken"]) == 0
    assert re.search(r"^state +unreadable: .* is not a Stepscope log", capsys.readouterr().out, re.MULTILINE)
    assert main(["delete", "broken"]) == 0
    assert a_home().runs() == []


def test_an_ended_run_takes_no_commands(capsys: pytest.CaptureFixture[str]) -> None:
    an_ended_run("over")
    for words in ("set over batch_size=2", "do over empty_cache", "pause over", "resume over", "stop over"):
        assert main(words.split()) == 1
        printed = capsys.readouterr().err
        assert "'over' is finished" in printed
        assert printed.count("\n") == 1


def test_latest_and_beginnings_name_runs(capsys: pytest.CaptureFixture[str]) -> None:
    an_ended_run("older", age_ns=10**12)
    an_ended_run("newer")
    assert main(["delete", "latest"]) == 0
    assert "Deleted newer" in capsys.readouterr().out
    assert main(["show", "old"]) == 0


def test_a_flag_outranks_the_environment_and_that_the_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.cli import build_parser
    from harness.cli.arguments import settings_of

    preset = resolve({"model": "mlp"})
    words = build_parser().parse_args(["run", "mlp", "--batch-size", "7", "--no-set-to-none"])
    environ = {"STEPSCOPE_BATCH_SIZE": "9", "STEPSCOPE_SEED": "3", "STEPSCOPE_PIN_MEMORY": "on"}
    settings = settings_of(words, environ)
    assert (settings.batch_size, settings.seed, settings.pin_memory, settings.set_to_none) == (
        7,
        3,
        True,
        False,
    )
    assert settings.image_size == preset.image_size


@pytest.mark.parametrize(
    ("words", "size"),
    [([], "workstation"), (["transformer"], "laptop"), (["--preset", "h200"], "h200")],
)
def test_only_a_run_without_model_and_size_takes_the_size_from_the_gpu(
    words: list[str], size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.cli import build_parser
    from harness.cli.arguments import settings_of

    monkeypatch.setattr("harness.device.first_gpu.gpu_memory_bytes", lambda *_: 24 << 30)
    assert settings_of(build_parser().parse_args(["run", *words]), {}).preset == size


def test_help_and_version_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help"], ["run", "--help"], ["set", "--help"], ["--version"]):
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert stop.value.code == 0
    printed = capsys.readouterr().out
    assert "--batch-size" in printed
    assert "_run" not in printed


@pytest.mark.slow
@pytest.mark.parametrize("words", ["list", "settings", "models", "show mine"])
def test_looking_never_imports_torch(words: str) -> None:
    an_ended_run("mine")
    code = (
        "import sys; from harness.cli import main; "
        "code = main(sys.argv[1:]); sys.exit(9 if 'torch' in sys.modules else code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *words.split()], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_ended_runs_are_listed_without_pydantic_and_rich() -> None:
    an_ended_run("mine")
    assert main(["list", "--json"]) == 0
    code = (
        "import sys; from harness.cli import main; "
        "code = main(['list', '--json']); sys.exit(9 if {'pydantic', 'rich'} & set(sys.modules) else code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"mine" in done.stdout


def test_every_command_is_found_without_the_others() -> None:
    from harness.cli import build_parser

    listed = set(re.findall(r"^    ([a-z]+)(?= |$)", build_parser().format_help(), re.MULTILINE))
    assert {"list", "run", "show", "tag", "dashboard"} <= listed
    for command in listed:
        alone = re.findall(r"^    ([a-z]+)(?= |$)", build_parser(command).format_help(), re.MULTILINE)
        assert command in alone
        assert len(alone) < len(listed)


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error() -> None:
    for number in range(3):
        an_ended_run(f"run-{number}")
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "harness", "settings"], stdout=write, stderr=subprocess.PIPE, check=False
    )
    os.close(write)
    assert done.returncode == 0
    assert done.stderr == b""


@pytest.mark.slow
def test_the_module_and_the_command_are_the_same_and_speak_to_the_right_stream() -> None:
    done = shell("show", "nobody")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert shell("list").returncode == 0


@pytest.mark.slow
def test_no_color_where_there_is_no_terminal() -> None:
    an_ended_run("plain")
    assert "\x1b" not in shell("list").stdout


def test_a_name_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    folder = an_ended_run("harmless")
    run = a_run(folder.run_id, "\x1b[2Jgone\r\n")._replace(state="finished", state_message="\x1b]0;title\x07")
    folder.log.unlink()
    with LogAppender(folder.log, run) as appender:
        appender.append(steps(1, 3))
    for words in (["list"], ["show", folder.run_id]):
        assert main(words) == 0
        printed = capsys.readouterr().out
        assert "\x1b" not in printed
        assert "\\x1b[2Jgone\\r\\n" in printed


@pytest.mark.slow
def test_a_stream_that_cannot_show_a_name_shows_question_marks() -> None:
    an_ended_run("数字")
    done = subprocess.run(
        [sys.executable, "-m", "harness", "list"],
        capture_output=True,
        check=False,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0, done.stderr
    assert b"??" in done.stdout
