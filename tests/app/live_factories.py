"""A live run whose log is written by hand, for pages that send requests."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from harness.demo.machine import FACTS
from harness.records.run import (
    AckRow,
    CommandKind,
    CommandState,
    RunState,
    SettingsRow,
    StepRow,
)
from harness.settings import Settings
from harness.settings.spec import change
from harness.store.control import ControlLog
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.inserts import Row
from harness.store.writer import LogWriter
from tests.store_factories import a_run, a_step


class LiveRun:
    """A run whose log is written by hand, in this process."""

    def __init__(self, folder: RunFolder, writer: LogWriter, settings: Settings, fed: list[StepRow]) -> None:
        self.folder = folder
        self._fed = fed
        self._writer = writer
        self._settings = settings
        self._version = 0

    @property
    def requests(self) -> list[tuple[str, dict[str, object]]]:
        """Kind and payload of every command."""
        with ControlLog(self.folder) as control:
            return [(command.kind, json.loads(command.payload)) for _, command in control.commands()]

    def answer(self, state: CommandState, message: str = "", step: int = 10) -> None:
        """Answer the last command, and change the settings when it is applied."""
        with ControlLog(self.folder) as control:
            command = control.commands()[-1][1]
        if state is CommandState.APPLIED and command.kind == CommandKind.SET:
            self._version += 1
            self._settings = change(self._settings, json.loads(command.payload))
            self._writer.put(self._row(step, command.payload, command.command_id))
        self._writer.put(AckRow(command.command_id, state, step, 0, message))
        assert self._writer.flush(5.0)

    def put(self, *rows: Row) -> None:
        """Write rows of any kind."""
        for row in rows:
            self._writer.put(row)
        assert self._writer.flush(5.0)

    def go_on(self, first: int, last: int) -> None:
        """Take more steps."""
        self._fed += [a_step(step) for step in range(first, last + 1)]
        assert self._writer.flush(5.0)

    def fed(self, rows: Sequence[StepRow], is_slow: Callable[[StepRow], bool]) -> None:
        """Take these steps, some of them three times as long."""
        self._fed += [row._replace(step_ns=3 * row.step_ns) if is_slow(row) else row for row in rows]
        assert self._writer.flush(5.0)

    def begin(self) -> None:
        """Write the first version of the settings."""
        self._writer.put(self._row(0, "{}", None))
        assert self._writer.flush(5.0)

    def _row(self, step: int, changed: str, command_id: str | None) -> SettingsRow:
        return SettingsRow(self._version, step, 0, self._settings.model_dump_json(), changed, command_id)


_HOLD = """
import sys
from pathlib import Path
from harness.store.liveness import Liveness
with Liveness.hold(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def _alive(folder: RunFolder) -> Iterator[None]:
    """A process of its own holds the run's lock: a lock does not show to the process that holds it."""
    command = [sys.executable, "-c", _HOLD, str(folder.alive)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield
        finally:
            process.communicate("")


@contextmanager
def live_run(home: Home, settings: Settings) -> Iterator[LiveRun]:
    folder = home.create("live", settings, time.time_ns())
    row = a_run(folder.run_id, "live")._replace(
        started_unix_ns=time.time_ns(),
        settings=settings.model_dump_json(),
        device=json.dumps(FACTS._asdict()),
        state=RunState.RUNNING,
    )
    steps = [a_step(step) for step in range(1, 40)]

    def feed() -> list[StepRow]:
        result, steps[:] = list(steps), []
        return result

    with (
        _alive(folder),
        LogWriter(folder.log, row, feed, time.monotonic_ns) as writer,
    ):
        run = LiveRun(folder, writer, settings, steps)
        run.begin()
        yield run
