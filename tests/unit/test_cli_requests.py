"""`stepscope show` states the requests to a run that did not take effect."""

import json
import os

import pytest

from harness.cli import main
from harness.records.run import AckRow, CommandKind, CommandRow, CommandState
from harness.settings.resolve import resolve
from harness.store.appender import LogAppender
from harness.store.control import ControlLog
from harness.store.home import Home
from tests.store_factories import a_run, steps

CAP = CommandRow("c1", 1, CommandKind.SET, '{"memory_cap_gib": 0.2, "amp": "bf16"}', "shell")
BATCH = CommandRow("c2", 2, CommandKind.SET, '{"batch_size": 64}', "dashboard")
TRIM = CommandRow("c3", 3, CommandKind.EMPTY_CACHE, "{}", "shell")
ACKS = (
    AckRow("c1", CommandState.REJECTED, 1, 1, "A memory cap can be set after step 2."),
    AckRow("c2", CommandState.APPLIED, 7, 2, ""),
)


def test_a_late_refusal_is_stated_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Home.locate(None, os.environ).create("requests", resolve({"model": "mlp"}), 1)
    with ControlLog(folder) as control:
        for command in (CAP, BATCH, TRIM):
            control.send(command)
    with LogAppender(folder.log, a_run(folder.run_id, "requests")._replace(state="finished")) as appender:
        appender.append(steps(1, 20), list(ACKS))
    assert main(["show", "requests"]) == 0
    text = capsys.readouterr().out
    assert "rejected" in text
    assert "memory_cap_gib=0.2 GiB, amp=bf16: A memory cap can be set after step 2." in text
    assert "batch_size=64" not in text
    assert "empty cache" in text
    assert main(["show", "requests", "--json"]) == 0
    requests = json.loads(capsys.readouterr().out)["requests"]
    assert [(one["kind"], one["state"], one["step"]) for one in requests] == [
        ("set", "rejected", 1),
        ("set", "applied", 7),
        ("empty_cache", "queued", None),
    ]
