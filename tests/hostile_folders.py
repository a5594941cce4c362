"""Run folders as nobody would write them: a whole one, ways to spoil it, and named cases of the worst."""

import json
import os
import random
import shutil
import socket
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path

from harness.demo.writing import write
from harness.records.run import CommandKind, CommandRow, ExitRow, StepRow
from harness.store.control import ControlLog
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.limits import check_files

FILES = (
    "request.json",
    "process.json",
    "alive",
    "harness.log",
    "control.sqlite3",
    "log.sqlite3",
    "labels.json",
)
STEPS = 60
Spoil = Callable[[RunFolder], None]


# A measurement whose pairs have blocks of three steps.
_MEASURED = (
    """INSERT INTO measurements VALUES (1, 3, 3, 'm1', 'shell', '{"amp": "off"}', '{"amp": "bf16"}', 8, 1)""",
    """WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 15)
    INSERT INTO measurement_blocks SELECT 1, i / 2 + 1, i % 2 + 1, CASE i % 2 WHEN 0 THEN 'A' ELSE 'B' END,
    3 + 3 * i, 5 + 3 * i, 1000 * i, 1000 * i + 900, 1, NULL, NULL FROM n""",
    "INSERT INTO measurement_ends VALUES (1, 51, 51, 'completed', 'All pairs were measured.')",
)


def whole_run(home: Home, scenario: str = "oom", run_id: str = "20260101-000000-aaaa") -> RunFolder:
    """A run with every file that a run's folder can have, lost since no process holds its lock."""
    written = write(scenario, home, steps=STEPS)
    folder = RunFolder(home.runs_path / run_id)
    written.path.rename(folder.path)
    edit(folder, "UPDATE run SET simulated = 0, state = 'running', ended_unix_ns = NULL")
    edit(folder, *_MEASURED)
    control = ControlLog(folder)
    control.send(CommandRow("c1", 1, CommandKind.SET, '{"amp": "bf16"}', "shell"))
    control.record_exit(ExitRow(1, 2, -9))
    folder.alive.touch()
    identity = {"boot_id": "x", "pid": 4_000_000, "start_ticks": 1, "nonce": "n"}
    folder.process.write_text(json.dumps(identity))
    folder.captures.mkdir(exist_ok=True)
    (folder.captures / "trace.json.gz").write_bytes(b"x")
    folder.labels.write_text('{"tags": ["best"], "note": "keep"}')
    return folder


def edit(folder: RunFolder, *statements: str, file: str = "log.sqlite3") -> None:
    """Change a file of the run by SQL, the schema too. Raises OSError where SQLite would wait for a pipe that
    an earlier change has put in place of its journal."""
    check_files(folder.path / file)
    connection = sqlite3.connect(folder.path / file, isolation_level=None)
    try:
        connection.execute("PRAGMA writable_schema = ON")
        for statement in statements:
            connection.execute(statement)
    finally:
        connection.close()


def loosen(folder: RunFolder) -> None:
    """Let every column of the log hold any value: no longer STRICT, nothing NOT NULL."""
    edit(
        folder,
        "UPDATE sqlite_schema SET sql = replace(replace(sql, 'STRICT, WITHOUT ROWID', 'WITHOUT ROWID'), "
        "') STRICT', ')') WHERE type = 'table'",
        "UPDATE sqlite_schema SET sql = replace(sql, ' NOT NULL', '') WHERE type = 'table'",
    )


def set_request(folder: RunFolder, **values: object) -> None:
    """Change members of request.json."""
    path = folder.path / "request.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def replace_by(kind: str, path: Path) -> None:
    """Put another kind of file in the place of `path`."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "link":
        path.symlink_to("/etc/hostname")
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "socket":
        # The address of a socket is short, the path of a test's folder is not.
        here = os.open(path.parent, os.O_RDONLY)
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)


KINDS = ("pipe", "folder", "loop", "link", "device", "socket", "nothing")
_ENDLESS = (
    "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS step, x AS t_ns FROM n"
)
_COLUMNS = ", ".join(name for name in StepRow._fields if name != "step")
_STEP = f"INSERT INTO steps (step, {_COLUMNS}) SELECT {{step}}, {_COLUMNS} FROM steps WHERE step = 5"
_EVENTS = """INSERT INTO events (t_ns, step, kind, severity, label, message, detail)
    WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 300000)
    SELECT x, x % 60, 'setting', 'info', 'x', 'y', '{}' FROM n"""


def _created(value: object) -> Spoil:
    return lambda folder: set_request(folder, created_unix_ns=value)


def _request_text(text: str) -> Spoil:
    def spoil(folder: RunFolder) -> None:
        (folder.path / "request.json").write_text(text)
        folder.log.unlink()

    return spoil


def _by_sql(*statements: str) -> Spoil:
    return lambda folder: edit(folder, *statements)


def _loosely(*statements: str) -> Spoil:
    def spoil(folder: RunFolder) -> None:
        loosen(folder)
        edit(folder, *statements)

    return spoil


def _kind(kind: str, name: str) -> Spoil:
    return lambda folder: replace_by(kind, folder.path / name)


def _pid_at_infinity(folder: RunFolder) -> None:
    folder.process.write_text('{"boot_id": "x", "pid": 1e999, "start_ticks": 1, "nonce": "n"}')


def _circular(folder: RunFolder) -> None:
    shutil.rmtree(folder.path)
    folder.path.symlink_to(folder.path)


_LEAK = "INSERT INTO leaks (t_ns, step, series, verdict, since_step, message) VALUES (1, 5, {}, 5, 'x')"


CASES: Mapping[str, Spoil] = {
    "measurement without JSON": _by_sql("UPDATE measurements SET before = 'x', after = '[1]'"),
    "measurement of other kinds": _by_sql("""UPDATE measurements SET after = '{"amp": [1], "x": {}}'"""),
    "measurement of no pairs": _by_sql("UPDATE measurements SET pairs = 0"),
    "unknown arms": _by_sql("UPDATE measurement_blocks SET arm = 'odd'"),
    "blocks beyond": _by_sql(f"UPDATE measurement_blocks SET last_step = {2**63 - 1}, t_ns = -5"),
    "blocks of infinite energy": _by_sql(
        "UPDATE measurement_blocks SET began_energy_j = 1, energy_j = 9e999"
    ),
    "created as text": _created("yesterday"),
    "created at infinity": _request_text('{"name": "x", "created_unix_ns": 1e999, "settings": {}}'),
    "created before time": _created(-(10**30)),
    "created beyond 64 bits": _created(10**30),
    "created at no number": _request_text('{"name": "x", "created_unix_ns": NaN, "settings": {}}'),
    "created true": _created(True),
    "created in a far future": _created(2**63 - 1),
    "nested JSON": _request_text("[" * 100_000),
    "nested settings": _request_text(
        '{"name": "x", "created_unix_ns": 1, "settings": {"a": ' + "[" * 500 + "]" * 500 + "}}"
    ),
    "half a character": _request_text('{"name": "\\ud800", "created_unix_ns": 1, "settings": {}}'),
    "control characters": lambda folder: set_request(folder, name="a\x1b[2J\x00\nb"),
    "endless name": lambda folder: edit(folder, "UPDATE run SET name = printf('%.*c', 50000000, 'x')"),
    "long name": lambda folder: set_request(folder, name="x" * 100_000),
    "pid at infinity": _pid_at_infinity,
    "endless view": _by_sql("DROP TABLE steps", f"CREATE VIEW steps AS {_ENDLESS}"),
    "endless view of the run": _by_sql("DROP TABLE run", f"CREATE VIEW run AS {_ENDLESS}"),
    "trigger": _by_sql("CREATE TRIGGER t AFTER INSERT ON steps BEGIN DELETE FROM steps; END"),
    "last step there is": _by_sql(_STEP.format(step=2**63 - 1)),
    "negative step": _by_sql(_STEP.format(step=-5)),
    "300,000 events": _by_sql(_EVENTS),
    "numbers as text": _loosely("UPDATE steps SET step_ns = 'long', t_ns = x'00ff'"),
    "numbers missing": _loosely("UPDATE steps SET step_ns = NULL, flags = NULL, samples = NULL"),
    "rollups as text": _loosely("UPDATE step_rollups SET peak_allocated_bytes_max = 'much', t_ns_first = ''"),
    "settings are no JSON": _by_sql("UPDATE settings SET settings = 'x', changed = '[1]'"),
    "settings of other kinds": _by_sql(
        """UPDATE settings SET changed = '{"amp": [1], "learning_rate": "x"}'"""
    ),
    "device of other kinds": _by_sql("""UPDATE run SET device = '{"name": 3}'"""),
    "unknown states": _by_sql("UPDATE run SET state = 'odd'", "UPDATE acks SET state = 'odd'"),
    "unknown series of a leak": _by_sql(_LEAK.format("'odd', 'leak'")),
    "unknown verdict on a leak": _by_sql(_LEAK.format("'allocated', 'odd'")),
    "circular link": _circular,
    "unknown loss": _by_sql("UPDATE steps SET loss_state = 9"),
    "no run": _by_sql("DELETE FROM run"),
    "no steps": _by_sql("DROP TABLE steps"),
    "changed beyond": _by_sql(f"UPDATE settings SET step = {2**63 - 1}"),
    **{f"{kind} as {name}": _kind(kind, name) for kind in ("pipe", "loop", "socket") for name in FILES},
    "pipe as journal": _kind("pipe", "log.sqlite3-wal"),
    "pipe as rollback journal": _kind("pipe", "log.sqlite3-journal"),
    "pipe as captures": _kind("pipe", "captures"),
    "device as output": _kind("device", "harness.log"),
    "control with a view": lambda folder: edit(
        folder, "DROP TABLE commands", f"CREATE VIEW commands AS {_ENDLESS}", file="control.sqlite3"
    ),
    "command without JSON": lambda folder: edit(
        folder, "UPDATE commands SET payload = 'x', kind = 'odd'", file="control.sqlite3"
    ),
}

_VALUES = (
    "NULL", "0", "-1", str(2**63 - 1), str(-(2**63)), "9e999", "1.5", "''", "'x'", "x'00ff'",
    "CAST(x'eda080' AS TEXT)", "'{}'", "'[]'", "'{\"amp\": {}}'", "printf('%.*c', 900, '[')",
    "printf('%.*c', 300000, 'y')", "char(27)",
)  # fmt: skip
_JSON_VALUES: tuple[object, ...] = (
    None, True, -1, 0, 10**30, 1.5, float("inf"), float("nan"), "", "x", "\ud800", "\x1b[2J", [], {}, [[]],
    {"model": 3}, {"model": "mlp", "batch_size": -1}, "y" * 100_000,
)  # fmt: skip


def spoil_somehow(folder: RunFolder, chance: random.Random) -> str:
    """Change the folder at random in one to three ways, and say how."""
    ways = (_swap_file, _change_bytes, _change_json, _change_json, _change_rows, _change_rows, _change_rows)
    return "; ".join(chance.choice(ways)(folder, chance) for _ in range(chance.randint(1, 3)))


def _swap_file(folder: RunFolder, chance: random.Random) -> str:
    names = (*FILES, "log.sqlite3-wal", "log.sqlite3-shm", "log.sqlite3-journal", "captures")
    kind, name = chance.choice(KINDS), chance.choice(names)
    replace_by(kind, folder.path / name)
    return f"{kind} as {name}"


def _change_bytes(folder: RunFolder, chance: random.Random) -> str:
    path = folder.path / chance.choice(FILES)
    if not path.is_file() or path.is_symlink():
        return "nothing"
    content = bytearray(path.read_bytes())
    at = chance.randrange(len(content) + 1)
    content[at : at + chance.randint(0, 40)] = chance.randbytes(chance.randint(0, 40))
    path.write_bytes(content[: chance.randint(0, len(content))] if chance.random() < 0.2 else content)
    return f"{path.name} changed at {at}"


def _change_json(folder: RunFolder, chance: random.Random) -> str:
    path = folder.path / chance.choice(("request.json", "process.json", "labels.json"))
    if not path.is_file() or path.is_symlink():  # An earlier change may have put a pipe or a device here.
        return "nothing"
    try:
        values = json.loads(path.read_text())
        name = chance.choice(list(values))
    except (OSError, ValueError, TypeError, IndexError):
        return "nothing"
    values[name] = chance.choice(_JSON_VALUES)
    path.write_text(json.dumps(values))
    return f"{path.name}: {name} = {str(values[name])[:20]!r}"


def _change_rows(folder: RunFolder, chance: random.Random) -> str:
    """A random value in a random column of some rows, with or without the types that the log enforces."""
    file = chance.choice(("log.sqlite3", "log.sqlite3", "control.sqlite3"))
    path = folder.path / file
    if path.is_symlink() or not path.is_file():
        return "nothing"
    try:
        if chance.random() < 0.6:
            loosen(folder)
        check_files(path)
        connection = sqlite3.connect(path, timeout=0.1)
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        table = chance.choice(sorted(tables))
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        column, value = chance.choice(columns), chance.choice(_VALUES)
        connection.close()
        edit(
            folder, f"UPDATE OR IGNORE {table} SET {column} = {value} WHERE abs(random() % 3) < 2", file=file
        )
    except (sqlite3.Error, IndexError, OSError):
        return "nothing"
    return f"{table}.{column} = {value}"
