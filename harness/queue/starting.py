"""The start of an entry, which happens once, whatever ends the worker in between.

An entry becomes the run with its `request_id`. A worker that is killed during a start leaves the entry with
`starting_on`; the next worker looks for that run. If a process was started for it, the start is completed;
if not, the folder is removed first, so that a process which starts late after all has nothing to train.
"""

import os
import shlex
from pathlib import Path
from typing import NamedTuple

import psutil

from harness import words
from harness.catalog.own import model_and_size
from harness.errors import SettingError
from harness.queue.placing import QueueDevice
from harness.records import json as row_json
from harness.records.queue import QueueRow
from harness.records.run import DeviceKind
from harness.records.script import ScriptOrigin
from harness.settings import Settings
from harness.settings.resolve import check_fit
from harness.settings.spec import change, from_json
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.liveness import is_alive
from harness.supervisor import Supervisor

# Restricts the CUDA runtime of a script to one device.
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_LONGEST_SUBJECT = 80


class QueuedWork(NamedTuple):
    """The work of an entry: the settings of a model, or the command of a script."""

    settings: Settings | None
    script: ScriptOrigin | None

    @property
    def subject(self) -> str:
        """The model and its size, or the script with its arguments."""
        if self.script is not None:
            arguments = words.printable(shlex.join(self.script.arguments))
            return words.clip(f"{self.script.short_command} {arguments}".rstrip(), _LONGEST_SUBJECT)
        assert self.settings is not None
        return model_and_size(self.settings.model, self.settings.preset)


def read_work(row: QueueRow) -> QueuedWork:
    """Return the work of an entry. Raises SettingError when this version cannot read it."""
    try:
        if row.script is not None:
            return QueuedWork(None, row_json.from_json(ScriptOrigin, row.script, ignore_unknown=True))
        return QueuedWork(from_json(row.settings), None)
    except SettingError:
        raise
    except ValueError as error:
        raise SettingError("model", f"The entry cannot be read ({error}); add it again.") from None


def check_work(work: QueuedWork) -> None:
    """Raise SettingError when the model, the script or its interpreter is not there any more."""
    if work.settings is not None:
        check_fit(work.settings)
    if work.script is None:
        return
    script = Path(work.script.folder) / work.script.command
    if not work.script.command.startswith("-m ") and not script.exists():
        raise SettingError("model", f"There is no script {script}; put it back, or remove the entry.")
    if not Path(work.script.python).exists():
        raise SettingError("model", f"There is no interpreter {work.script.python}; add it again.")


def start_entry(supervisor: Supervisor, row: QueueRow, device: QueueDevice) -> RunFolder:
    """Start the run of an entry on `device`. Raises StepscopeError; then no run remains."""
    work = read_work(row)
    if work.script is not None:
        visible = {_VISIBLE: "" if device.facts.kind is DeviceKind.CPU else device.selector}
        variables = visible if device.facts.kind in (DeviceKind.CPU, DeviceKind.CUDA) else {}
        return supervisor.start_script(row.name, work.script, row.request_id, variables)
    assert work.settings is not None
    settings = change(work.settings, {"device": device.selector})
    return supervisor.start(row.name, settings, row.request_id)


def interrupted_start(home: Home, row: QueueRow) -> RunFolder | None:
    """Return the run that an earlier worker started for the entry; None: it has not, and nothing remains.
    Raises HomeError."""
    with home.starting():
        folder = next((f for f in home.runs() if f.request().request_id == row.request_id), None)
        if folder is None or _has_started(folder):
            return folder
        home.remove(folder)
        return None


def _has_started(folder: RunFolder) -> bool:
    """Return whether a process was started for the run, even if it has not written anything yet."""
    if folder.log.exists() or folder.process.exists() or is_alive(folder.alive):
        return True
    own = os.fsencode(folder.path)
    for process in psutil.process_iter(["cmdline"]):
        if any(os.fsencode(word) == own for word in process.info["cmdline"] or ()):
            return True
    return False
