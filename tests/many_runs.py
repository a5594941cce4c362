"""A home with many ended runs: a few simulated ones, copied under other ids and names."""

import json
import shutil
import sqlite3
from datetime import UTC, datetime

from harness.demo.writing import write_all
from harness.store.folder import REQUEST, RunFolder
from harness.store.home import Home

_SCENARIOS = ("steady", "amp", "oom", "leak", "one-step")
_STEPS = 60
_BEGUN_UNIX_NS = 1_500_000_000_000_000_000
_BETWEEN_NS = 3_600_000_000_000
_LASTED_NS = 60_000_000_000


def write_many(home: Home, count: int) -> list[RunFolder]:
    """Write `count` ended runs into `home`, the oldest first."""
    originals = list(write_all(home, _SCENARIOS, steps=_STEPS))
    runs = [_copy(home, originals[at % len(originals)], at) for at in range(count)]
    for folder in originals:
        home.remove(folder)
    return runs


def _copy(home: Home, original: RunFolder, at: int) -> RunFolder:
    created_unix_ns = _BEGUN_UNIX_NS + at * _BETWEEN_NS
    stamp = datetime.fromtimestamp(created_unix_ns / 1e9, UTC).strftime("%Y%m%d-%H%M%S")
    folder = RunFolder(home.runs_path / f"{stamp}-{at:04x}")
    shutil.copytree(original.path, folder.path)
    name = f"run-{at:04}"
    request = json.loads((folder.path / REQUEST).read_text())
    identity = {"run_id": folder.run_id, "name": name, "created_unix_ns": created_unix_ns}
    (folder.path / REQUEST).write_text(json.dumps(request | identity))
    connection = sqlite3.connect(folder.log, isolation_level=None)
    connection.execute(
        "UPDATE run SET run_id = ?, name = ?, simulated = 0, started_unix_ns = ?, ended_unix_ns = ?",
        (folder.run_id, name, created_unix_ns, created_unix_ns + _LASTED_NS),
    )
    connection.close()
    return folder
