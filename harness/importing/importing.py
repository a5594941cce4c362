"""Import of one folder into a home: the kind of folder decides how."""

import os
import time
from pathlib import Path

from harness.errors import UsageError
from harness.importing.imported import Imported
from harness.importing.run_folder import import_run
from harness.importing.tensorboard import event_files, import_events
from harness.store.folder import REQUEST, RunFolder
from harness.store.home import Home
from harness.words import printable


def import_folder(home: Home, path: Path, name: str | None = None) -> Imported:
    """Import `path`, a run's folder or a TensorBoard log, as a new run of `home`. The source is not changed.

    `name` None: the run's own name, or the log's folder, with a number if it is taken. Raises UsageError when
    the folder is neither or is in the home already, LogError when its log cannot be read, HomeError when the
    home cannot be written. After an error nothing is left of the new run.
    """
    text, path = printable(str(path)), path.absolute()
    if not path.is_dir():
        raise UsageError(f"{text} is not a folder; name the folder of a run, or of a TensorBoard log.")
    if path.resolve().parent == home.runs_path.resolve():
        raise UsageError(f"{text} is a run of this home already.")
    now_unix_ns = time.time_ns()
    folder = RunFolder(path)
    if os.path.lexists(folder.log) or os.path.lexists(path / REQUEST):
        return import_run(home, folder, name, now_unix_ns)
    files = event_files(path)
    if files:
        return import_events(home, path, files, name, now_unix_ns)
    raise UsageError(
        f"{text} has neither the log of a run (log.sqlite3) nor TensorBoard's event files "
        "(events.out.tfevents.…); name the folder that has them."
    )
