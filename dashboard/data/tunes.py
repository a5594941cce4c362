"""The tunes of the home, and the start of one."""

from collections.abc import Sequence
from typing import NamedTuple

from dashboard.data.runs import home, supervisor
from harness.catalog.own import model_and_size
from harness.errors import HomeError
from harness.settings import Settings
from harness.tune.folder import TuneFolder, tunes
from harness.tune.launch import launch_tune, relaunch_tune
from harness.tune.rows import Goal, Tune, TuneState


class TuneView(NamedTuple):
    """One tune, or the reason that it cannot be read."""

    folder: TuneFolder
    tune: Tune | None
    problem: str | None

    @property
    def is_running(self) -> bool:
        """True while its process runs."""
        return self.tune is not None and self.tune.state is TuneState.RUNNING

    @property
    def is_stopping(self) -> bool:
        """True while its process runs after a request to end, which takes effect after some steps."""
        return self.is_running and self.folder.stop.exists()


def tune_titles(most: int = 50) -> dict[str, str]:
    """Return the title of each of the newest tunes by its id: its model, size, device and id."""
    return {folder.tune_id: _title(folder) for folder in tunes(home())[:most]}


def _title(folder: TuneFolder) -> str:
    try:
        tune = folder.read()
    except HomeError:
        return folder.tune_id
    settings = tune.baseline
    device = settings.device if tune.device is None else tune.device.name
    return f"{model_and_size(settings.model, settings.preset)} on {device} · {folder.tune_id}"


def view_tune(tune_id: str) -> TuneView | None:
    """Return a tune; None where it was deleted."""
    folder = next((folder for folder in tunes(home()) if folder.tune_id == tune_id), None)
    if folder is None:
        return None
    try:
        return TuneView(folder, folder.view(), None)
    except HomeError as error:
        return TuneView(folder, None, str(error))


def start_tune(settings: Settings, goal: Goal, budget_s: float, selected: Sequence[str]) -> TuneFolder:
    """Start a tune of the `selected` settings, or of all, in a process of its own. Raises StepscopeError."""
    supervisor().check_may_write()
    return launch_tune(home(), settings, goal, budget_s, selected)


def resume_tune(folder: TuneFolder) -> None:
    """Continue a tune that was stopped, or that ran out of time. Raises StepscopeError."""
    supervisor().check_may_write()
    relaunch_tune(home(), folder)


def stop_tune(folder: TuneFolder) -> None:
    """Request the end of a tune. Raises StepscopeError."""
    supervisor().check_may_write()
    folder.request_stop()
