"""Folders in the home that no Stepscope wrote."""

import json
import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from harness.demo.writing import write
from harness.store.folder import RunFolder
from harness.store.home import Home
from tests.faults.forks import Forks
from tests.faults.scenario import Bench, Measurement, Scenario

_STEPS = 50
_DEADLINE_S = 10.0


def _request(**values: object) -> Callable[[RunFolder], None]:
    def spoil(folder: RunFolder) -> None:
        path = folder.path / "request.json"
        request = json.loads(path.read_text(encoding="utf-8")) | values
        path.write_text(json.dumps(request), encoding="utf-8")

    return spoil


def _request_text(text: str) -> Callable[[RunFolder], None]:
    def spoil(folder: RunFolder) -> None:
        (folder.path / "request.json").write_text(text, encoding="utf-8")

    return spoil


def _process(text: str) -> Callable[[RunFolder], None]:
    def spoil(folder: RunFolder) -> None:
        folder.process.write_text(text, encoding="utf-8")

    return spoil


def _log_sql(*statements: str) -> Callable[[RunFolder], None]:
    def spoil(folder: RunFolder) -> None:
        with sqlite3.connect(folder.log) as connection:
            for statement in statements:
                connection.execute(statement)
        connection.close()

    return spoil


def _in_place_of_log(make: Callable[[Path], None]) -> Callable[[RunFolder], None]:
    def spoil(folder: RunFolder) -> None:
        folder.log.unlink()
        make(folder.log)

    return spoil


def _truncated(folder: RunFolder) -> None:
    os.truncate(folder.log, folder.log.stat().st_size // 2)


def _loop(folder: RunFolder) -> None:
    shutil.rmtree(folder.path)
    folder.path.symlink_to(folder.path)


_ENDLESS_VIEW = (
    "ALTER TABLE steps RENAME TO steps_before",
    "CREATE VIEW steps AS WITH RECURSIVE n(step) AS (SELECT 1 UNION ALL SELECT step + 1 FROM n) "
    "SELECT * FROM n",
)
_HOSTILE: Mapping[str, Callable[[RunFolder], None]] = {
    "a creation time beyond every calendar": _request(created_unix_ns=10**30),
    "a creation time of infinity": _request_text('{"name": "x", "created_unix_ns": 1e999, "settings": {}}'),
    "JSON nested a hundred thousand times": _request_text("[" * 100_000 + "]" * 100_000),
    "half a character in a name": _request(name="\ud800"),
    "a process number of infinity": _process(
        '{"boot_id": "x", "pid": 1e999, "start_ticks": 1, "nonce": "x"}'
    ),
    "a pipe in place of the log": _in_place_of_log(os.mkfifo),
    "a folder in place of the log": _in_place_of_log(os.mkdir),
    "half a log": _truncated,
    "a folder that is a link to itself": _loop,
    "a view without end named steps": _log_sql(*_ENDLESS_VIEW),
    "a step numbered 2^63 - 1": _log_sql("UPDATE steps SET step = 9223372036854775807 WHERE step = 50"),
    "a name of 5 MB": _request(name="x" * 5_000_000),
}
_QUICK = ("half a character in a name", "a pipe in place of the log", "half a log", "a name of 5 MB")


def _list(pages: Forks, home: Home) -> tuple[list[str], float]:
    """Return what the dashboard's supervisor lists; nothing when it fails or takes longer than
    `_DEADLINE_S`."""
    began_s = time.monotonic()
    pid = pages.start(json.dumps({"act": "list", "home": str(home.path)}))
    while (status := pages.ended(pid)) is None and time.monotonic() - began_s < _DEADLINE_S:
        time.sleep(0.005)
    took_s = time.monotonic() - began_s
    if status is None:
        os.kill(pid, signal.SIGKILL)
    return ([line.removeprefix("did ") for line in pages.said(pid)] if status == 0 else []), took_s


def _hostile(bench: Bench) -> Measurement:
    home, broken, longest_s = bench.new_home("hostile"), [], 0.0
    good = write("steady", home, steps=_STEPS)
    listed, _ = _list(bench.pages, home)
    (expected,) = listed
    kinds = _QUICK if bench.is_quick else tuple(_HOSTILE)
    for number, kind in enumerate(kinds):
        folder = RunFolder(home.runs_path / f"20260101-000000-{number:04x}")
        shutil.copytree(good.path, folder.path)
        _HOSTILE[kind](folder)
        listed, took_s = _list(bench.pages, home)
        longest_s = max(longest_s, took_s)
        if expected not in listed:
            broken.append(f"{kind}: the other run is not listed ({took_s:.1f} s)")
        if folder.path.is_symlink():
            folder.path.unlink()
        else:
            shutil.rmtree(folder.path)
    text = (
        f"{len(kinds)} kinds of folders beside a good run: it is listed each time, within {longest_s:.1f} s"
    )
    return Measurement(text, tuple(broken))


SCENARIOS = (
    Scenario(
        "hostile-folders",
        "A folder in the home that is damaged, or made to do harm",
        f"Every other run is listed, within {_DEADLINE_S:g} s.",
        _hostile,
        is_in_tests=False,
    ),
)
