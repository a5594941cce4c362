"""A script's session in the process of a test."""

import gc
import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.attach.guard import ScriptGuard
from harness.attach.session import Session
from harness.identity import identify_self, write_identity
from harness.records.run import AckRow, CommandKind, EventRow
from harness.records.script import ScriptOrigin
from harness.store.folder import RunFolder
from harness.store.folder_handle import FolderHandle
from harness.store.home import Home
from harness.store.liveness import Liveness
from harness.store.reader import LogReader
from harness.watch.watch import RunFiles
from tests.train_factories import a_command


@dataclass
class Attached:
    """A session under way, whose torch is patched, and the folder of its run."""

    session: Session
    folder: RunFolder
    guard: ScriptGuard
    asked: int = 0

    def ask(self, kind: str = CommandKind.SET, **values: Any) -> str:
        """Request a change of settings, or another command; returns the request's id."""
        self.asked += 1
        command = a_command(kind, json.dumps(values), f"c{self.asked}")
        self.session.inbox.put(command)
        return command.command_id

    def log(self) -> LogReader:
        """The run's log; complete after the session's end."""
        return LogReader(self.folder.log)

    def answer(self, command_id: str) -> AckRow:
        """The answer to a request, after the session's end."""
        with self.log() as log:
            return next(row for row in log.acks() if row.command_id == command_id)

    def events(self) -> list[EventRow]:
        """The events of the run, after the session's end."""
        with self.log() as log:
            return [row for _, row in log.events()]

    def settings(self) -> list[dict[str, Any]]:
        """The recorded settings by version, after the session's end."""
        with self.log() as log:
            return [json.loads(row.settings) for row in log.settings_history()]


@contextmanager
def a_session(home: Path) -> Iterator[Attached]:
    """A session of a script in this process. It ends with the context, by the error raised in it if any."""
    gc.collect()  # Optimizers of earlier tests are not the script's.
    origin = ScriptOrigin("train.py", (), os.getcwd(), "python", None, None)
    folder = Home(home).create_for_script(None, origin, time.time_ns())
    with ExitStack() as stack:
        handle = stack.enter_context(FolderHandle(folder))
        alive = stack.enter_context(Liveness.hold(handle.steady.alive))
        write_identity(handle.steady.process, identify_self({}))
        guard = ScriptGuard()
        files = RunFiles(folder.path, handle, alive)
        attached = Attached(Session(folder, files, guard, lambda: None), folder, guard)
        try:
            yield attached
        except BaseException as error:
            attached.session.end(error)
            raise
        attached.session.end(None)
