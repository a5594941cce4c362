"""The end of a process that nothing explains, soon after a live change of settings."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from harness.records.run import RunState, SettingsRow
from harness.store.appender import LogAppender
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.supervisor.inspection import inspect_run
from harness.supervisor.logs import LogCache
from tests.script_factories import an_origin
from tests.store_factories import a_run, steps


def versions(
    first: dict[str, Any], step: int, changed: dict[str, Any], command: str | None
) -> list[SettingsRow]:
    """The settings at the beginning, and a change before `step`."""
    return [
        SettingsRow(1, 1, 0, json.dumps(first), "{}", None),
        SettingsRow(2, step, 9, json.dumps(first | changed), json.dumps(changed), command),
    ]


def a_lost_run(home: Path, rows: list[SettingsRow]) -> RunFolder:
    folder = Home(home).create_for_script(None, an_origin(), 0)
    log = LogAppender(folder.log, a_run(folder.run_id, "train-1")._replace(state="running"))
    log.append(steps(1, 60), rows)
    log.close()
    return folder


@pytest.mark.parametrize(
    ("step", "when"), [(61, "in the first step after"), (60, "1 step after"), (11, "50 steps after")]
)
def test_a_process_that_vanished_soon_after_a_change_is_said_to_follow_it(
    tmp_path: Path, step: int, when: str
) -> None:
    rows = versions({"batch_size": 32}, step, {"batch_size": 4096}, "c1")
    status = inspect_run(a_lost_run(tmp_path, rows), LogCache(), time.time()).status
    assert status.state is RunState.LOST
    assert status.message.endswith(
        f" It ended {when} a live change, which may be the cause: Batch size 32 → 4,096 (loader rebuilt), "
        f"before step {step}."
    )


@pytest.mark.parametrize(
    ("step", "changed", "command"),
    [
        (10, {"batch_size": 64}, "c1"),
        # By the script itself, and a measurement, which changed nothing in the end.
        (60, {"batch_size": 64}, None),
        (60, {}, "c1"),
    ],
)
def test_other_changes_are_not_named(
    tmp_path: Path, step: int, changed: dict[str, Any], command: str | None
) -> None:
    rows = versions({"batch_size": 32}, step, changed, command)
    status = inspect_run(a_lost_run(tmp_path, rows), LogCache(), time.time()).status
    assert status.state is RunState.LOST
    assert "change" not in status.message


@pytest.mark.parametrize("first", [{}, {"batch_size": {"amp": []}}, {"batch_size": "many"}])
def test_settings_that_are_none_hide_no_lost_run(tmp_path: Path, first: dict[str, Any]) -> None:
    values: list[dict[str, Any]] = [{"batch_size": 64}, {"batch_size": [1]}, {"amp": {}}]
    for number, changed in enumerate(values):
        folder = a_lost_run(tmp_path / str(number), versions(first, 60, changed, "c1"))
        assert inspect_run(folder, LogCache(), time.time()).status.state is RunState.LOST
