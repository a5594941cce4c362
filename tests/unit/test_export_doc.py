"""The page "Export, metrics and alerts": its commands run, and its lists are complete."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from harness.alerts import AlertKind
from harness.cli import build_parser, main
from harness.demo.writing import write
from harness.export import TABLES
from harness.store.home import Home
from tests.hostile_folders import whole_run
from tests.ports import free_port

_PAGE = (Path(__file__).parents[2] / "docs" / "export-and-alerts.md").read_text(encoding="utf-8")
# These do not end by themselves.
_SERVING = {"metrics": "/metrics\n", "watch": "Ctrl-C ends it.\n"}


def _commands() -> list[list[str]]:
    blocks = re.findall(r"^```sh\n(.*?)^```$", _PAGE, re.M | re.S)
    lines = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    assert all(words[0] == "stepscope" for words in lines)
    return [words[1:] for words in lines]


def test_every_command_that_ends_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write("steady", Home.locate(None, os.environ), steps=20)
    whole_run(Home(tmp_path / "old-home"), run_id="20260102-030405-abcd")
    (tmp_path / "tb-logs" / "exp-1").mkdir(parents=True)
    with (tmp_path / "tb-logs" / "exp-1" / "events.out.tfevents.1.a").open("wb") as file:
        summary = Summary(value=[Summary.Value(tag="loss", simple_value=0.5)])
        RecordWriter(file).write(Event(wall_time=1.0, step=1, summary=summary).SerializeToString())
    commands = [words for words in _commands() if words[0] not in _SERVING]
    assert len(commands) == 5
    assert [main(words) for words in commands] == [0] * 5


@pytest.mark.slow
@pytest.mark.parametrize("words", [words for words in _commands() if words[0] in _SERVING])
def test_every_command_that_serves_starts(words: list[str]) -> None:
    build_parser().parse_args(words)
    if words[0] == "metrics":
        words = [*words[:-1], str(free_port())]
    command = [sys.executable, "-m", "harness", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().endswith(_SERVING[words[0]])
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(20) == 130
        finally:
            process.kill()


def test_every_table_and_every_kind_of_alert_is_listed() -> None:
    assert [name for name in TABLES if f"`{name}`" not in _PAGE] == []
    assert [kind for kind in AlertKind if f"`{kind}`" not in _PAGE] == []
