"""Start of a tune in a process of its own, which outlives the dashboard."""

import os
import threading
import time

from harness.errors import StepscopeError
from harness.identity import new_nonce
from harness.settings import Settings
from harness.settings.resolve import check_fit
from harness.store.home import Home
from harness.supervisor.launch import Spawn, child_environment, spawn, tune_command
from harness.tune.folder import TuneFolder, create_tune
from harness.tune.rows import Goal, Tune


def launch_tune(
    home: Home, settings: Settings, goal: Goal, budget_s: float, start: Spawn = spawn
) -> TuneFolder:
    """Create a tune and start its process. Raises SettingError, HomeError, StepscopeError."""
    check_fit(settings)
    now_unix_s = time.time()
    folder = create_tune(home, now_unix_s)
    values = settings.model_dump(mode="json")
    folder.write(Tune(folder.tune_id, now_unix_s, values, goal, budget_s))
    relaunch_tune(home, folder, start)
    return folder


def relaunch_tune(home: Home, folder: TuneFolder, start: Spawn = spawn) -> None:
    """Start a process that continues a tune. Raises StepscopeError."""
    command = tune_command(home.path, folder.tune_id)
    try:
        process = start(command, child_environment(os.environ, new_nonce()), folder.output)
    except OSError as error:
        raise StepscopeError(
            f"No process could be started for the tune: {error.strerror or error}; close other programs."
        ) from error
    threading.Thread(target=process.wait, name="stepscope-tune-reaper", daemon=True).start()
