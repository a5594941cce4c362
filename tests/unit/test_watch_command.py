"""`stepscope watch` as a process, over a run whose training another process stands for."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from harness.alerts import AlertOptions, AlertService
from harness.cli import build_parser, main
from harness.cli.watching import alert_options
from harness.errors import HomeError
from harness.records.run import EventKind
from harness.store.home import Home
from harness.supervisor import Supervisor
from tests.alert_factories import LiveRun, Receiver, a_live_run
from tests.supervision import until


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def run(home: Home) -> Iterator[LiveRun]:
    with a_live_run(home) as run:
        yield run


def a_watch(home: Home, *words: str) -> "subprocess.Popen[str]":
    """A process that watches: its first poll has been, or is about to be, when this returns."""
    command = [sys.executable, "-m", "harness", "watch", "--home", str(home.path), *words]
    watch = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert _line(watch.stderr) == f"Watching the runs in {home.path}. Ctrl-C ends it.\n"
    histories = home.path / "alerts"
    until(lambda: list(histories.glob("*.json")), bool)
    return watch


def _line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline()


@pytest.mark.slow
def test_an_alert_is_printed_posted_and_given_to_a_command(home: Home, run: LiveRun, tmp_path: Path) -> None:
    target = tmp_path / "said"
    with Receiver() as receiver:
        words = ("--alert-webhook", receiver.url, "--on-alert", f"sh -c 'echo \"$0\" > {target}' {{text}}")
        with a_watch(home, *words) as watch:
            run.put(EventKind.OOM, "So it is.")
            assert _line(watch.stdout)[10:] == "Out of memory, cnn-1: So it is.\n"
            until(lambda: target.exists() and target.read_text(), bool)
            watch.send_signal(signal.SIGTERM)
            assert watch.wait(20) == 0
    assert [json.loads(post.body) for post in receiver.posts] == [{"text": "Out of memory, cnn-1: So it is."}]
    assert target.read_text() == "Out of memory, cnn-1: So it is.\n"


@pytest.mark.long
def test_ctrl_c_ends_it_and_a_restart_repeats_nothing(home: Home, run: LiveRun) -> None:
    with a_watch(home) as watch:
        run.put(EventKind.LEAK)
        assert "Memory leak" in _line(watch.stdout)
        watch.send_signal(signal.SIGINT)
        assert watch.wait(20) == 130
    with a_watch(home) as again:
        run.finish()
        assert "Finished, cnn-1: Took all 20 steps." in _line(again.stdout)
        again.send_signal(signal.SIGINT)
        assert again.wait(20) == 130


@pytest.mark.slow
def test_the_same_destinations_are_watched_for_once(home: Home) -> None:
    supervisor, options = Supervisor(home), AlertOptions(commands=("true",))
    with AlertService(supervisor, options, print):
        with pytest.raises(HomeError, match="has been locked"):
            AlertService(supervisor, options, print)
        AlertService(supervisor, AlertOptions(commands=("false",)), print).close()
    AlertService(supervisor, options, print).close()


@pytest.mark.parametrize("command", ["watch", "dashboard"])
def test_a_webhook_that_is_no_web_address_is_refused(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--alert-webhook", "ftp://example.com/secret"]) == 2
    said = capsys.readouterr().err
    assert "--alert-webhook cannot be" in said
    assert "secret" not in said


def test_the_address_of_a_webhook_may_stand_in_a_file(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "address").write_text("https://hooks.slack.com/services/secret\n")
    words = ["watch", "--alert-webhook", f"@{tmp_path / 'address'}"]
    assert alert_options(build_parser().parse_args(words)).webhooks == (
        "https://hooks.slack.com/services/secret",
    )
    assert main(["watch", "--alert-webhook", f"@{tmp_path / 'missing'}"]) == 2
    assert "--alert-webhook cannot read" in capsys.readouterr().err
