"""Start of a tune in a process of its own, which outlives the dashboard."""

import os
import threading
import time
from collections.abc import Sequence

from harness.errors import RunStateError, StepscopeError
from harness.identity import new_nonce
from harness.settings import Settings
from harness.settings.resolve import check_fit
from harness.store.home import Home
from harness.store.liveness import is_alive
from harness.supervisor.launch import Spawn, child_environment, spawn, tune_command
from harness.tune.folder import TuneFolder, create_tune
from harness.tune.planning import LEAST_BUDGET_S
from harness.tune.rows import Goal, Tune, TuneState

# Added to the budget of a tune that continues without enough of it.
MORE_BUDGET_S = 300.0


def launch_tune(
    home: Home,
    settings: Settings,
    goal: Goal,
    budget_s: float,
    selected: Sequence[str] = (),
    start: Spawn = spawn,
) -> TuneFolder:
    """Create a tune of the `selected` settings, or of all, and start its process. Raises SettingError,
    HomeError, StepscopeError."""
    check_fit(settings)
    now_unix_s = time.time()
    folder = create_tune(home, now_unix_s)
    values = settings.model_dump(mode="json")
    folder.write(Tune(folder.tune_id, now_unix_s, values, goal, budget_s, selected=tuple(selected)))
    _start(home, folder, start)
    return folder


def needs_budget(tune: Tune) -> bool:
    """Return whether a tune has too little time left to continue."""
    return tune.remaining_s < LEAST_BUDGET_S


def relaunch_tune(home: Home, folder: TuneFolder, start: Spawn = spawn) -> None:
    """Start a process that continues a tune, with `MORE_BUDGET_S` more where too little is left. Raises
    StepscopeError, and RunStateError when it is in progress."""
    tune = folder.read()
    if is_alive(folder.alive):
        raise RunStateError(f"The tune {folder.tune_id} is in progress in another process.")
    budget_s = tune.spent_s + MORE_BUDGET_S if needs_budget(tune) else tune.budget_s
    # It is in progress from now on; its process takes some seconds to say so.
    folder.write(tune._replace(state=TuneState.RUNNING, message="", progress=None, budget_s=budget_s))
    folder.stop.unlink(missing_ok=True)
    try:
        _start(home, folder, start)
    except StepscopeError:
        folder.write(tune)
        raise


def _start(home: Home, folder: TuneFolder, start: Spawn) -> None:
    command = tune_command(home.path, folder.tune_id)
    try:
        process = start(command, child_environment(os.environ, new_nonce()), folder.output)
    except OSError as error:
        raise StepscopeError(
            f"No process could be started for the tune: {error.strerror or error}; close other programs."
        ) from error
    threading.Thread(target=process.wait, name="stepscope-tune-reaper", daemon=True).start()
