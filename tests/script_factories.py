"""Runs of a person's script, with logs as `stepscope run train.py` writes them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from harness.demo.machine import FACTS
from harness.records.run import DeviceFacts, RunState, SettingsRow
from harness.records.script import ScriptOrigin
from harness.store.appender import LogAppender
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.inserts import Row
from tests.store_factories import a_run, a_step

SCRIPT_SETTINGS: Mapping[str, Any] = {"amp": "off", "matmul_precision": "high", "empty_cache_every": 0}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def an_origin(**changes: Any) -> ScriptOrigin:
    """The origin of `train.py --epochs 3 "two words"`, with uncommitted changes."""
    arguments = ("--epochs", "3", "two words")
    origin = ScriptOrigin("train.py", arguments, "/home/me/project", "/usr/bin/python3", COMMIT, True)
    return origin._replace(**changes)


def script_run(
    home: Home,
    settings: Mapping[str, Any] = SCRIPT_SETTINGS,
    rows: Sequence[Row] = (),
    *,
    origin: ScriptOrigin | None = None,
    device: DeviceFacts = FACTS,
    step_count: int = 60,
) -> RunFolder:
    """An ended run of a script, with `rows` beyond its steps and its settings."""
    folder = home.create_for_script(None, origin or an_origin(), 1_700_000_000_000_000_000)
    run = a_run(folder.run_id, folder.request().name)._replace(
        settings=json.dumps(settings),
        device=json.dumps(device._asdict()),
        versions=json.dumps({"python": "3.12.1", "torch": "2.9.0", "cuda": None}),
        state=RunState.FINISHED,
        state_message=f"The script ended after {step_count} steps.",
        ended_unix_ns=1_700_000_060_000_000_000,
    )
    version = SettingsRow(1, 1, 0, json.dumps(settings), "{}", None)
    steps = [a_step(step)._replace(settings_version=1) for step in range(1, step_count + 1)]
    with LogAppender(folder.log, run) as appender:
        appender.append(steps, [version, *rows])
    return folder
