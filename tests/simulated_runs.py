"""Simulated runs, each written once per test session and copied from there."""

import fcntl
import shutil
from pathlib import Path

from harness.demo.writing import write
from harness.store.folder import RunFolder
from harness.store.home import Home


class SimulatedRuns:
    """Runs of the scenarios in a folder that the workers of a session share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def copy(self, home: Home, scenario: str, steps: int | None = None) -> RunFolder:
        """Put a run of the scenario into the home, once."""
        original = self._written(scenario, steps)
        home.runs_path.mkdir(parents=True, exist_ok=True)
        return RunFolder(Path(shutil.copytree(original.path, home.runs_path / original.run_id)))

    def _written(self, scenario: str, steps: int | None) -> RunFolder:
        """Return the run to copy; the first worker that needs it writes it."""
        place = self._folder / f"{scenario}-{steps}"
        self._folder.mkdir(exist_ok=True)
        with place.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            home = Home(place)
            runs = home.runs() if home.runs_path.exists() else []
            return runs[0] if runs else write(scenario, home, steps=steps)
