"""The folders of tunes in the home: state, lock, output, and the request to stop."""

import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness import words
from harness.errors import HomeError, SettingError, UnknownRunError
from harness.files.regular import read_whole, replace_private
from harness.records import json as row_json
from harness.settings.spec import parse
from harness.store.home import Home
from harness.store.liveness import is_alive
from harness.tune.rows import Tune, TuneState

# A trial takes about 1.5 KB.
_MOST_BYTES = 4 << 20
# A process that was just started has not locked the folder yet; it imports for seconds on a busy machine.
_START_S = 30.0
_LOST = "Its process ended in the middle; continue with `stepscope tune --resume {}`."


@dataclass(frozen=True)
class TuneFolder:
    """The folder of one tune."""

    path: Path

    @property
    def tune_id(self) -> str:
        """The tune's id: the folder's name, with unprintable characters escaped."""
        return words.printable(self.path.name)

    @property
    def alive(self) -> Path:
        """The file that the tune's process locks while it lives."""
        return self.path / "alive"

    @property
    def output(self) -> Path:
        """The output of a tune that the dashboard started."""
        return self.path / "tune.log"

    @property
    def stop(self) -> Path:
        """A file that requests the end of the tune."""
        return self.path / "stop"

    @property
    def state(self) -> Path:
        """The file with the state."""
        return self.path / "tune.json"

    def read(self) -> Tune:
        """Read the state; one whose process has ended is not running. Raises HomeError."""
        try:
            text = read_whole(self.state, _MOST_BYTES).decode("utf-8")
            tune = row_json.from_json(Tune, text, ignore_unknown=True)
            parse(tune.settings)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise HomeError(f"The tune {self.tune_id} cannot be read: {reason}.") from None
        except (ValueError, SettingError) as error:
            reason = words.clip(words.printable(str(error)), 200)
            raise HomeError(f"The tune {self.tune_id} is not valid: {reason}.") from None
        return tune._replace(tune_id=self.tune_id)

    def view(self) -> Tune:
        """Read the state, as another process than the tune's own: one without a process is not running.
        Raises HomeError."""
        tune = self.read()
        is_new = time.time() - self._changed_unix_s() < _START_S
        if tune.state is TuneState.RUNNING and not is_new and not is_alive(self.alive):
            message = _LOST.format(self.tune_id)
            return tune._replace(state=TuneState.STOPPED, message=message, progress=None)
        return tune

    def _changed_unix_s(self) -> float:
        try:
            return self.state.stat().st_mtime
        except OSError:
            return 0.0

    def write(self, tune: Tune) -> None:
        """Replace the state atomically. Raises HomeError, and then removes the folder of a new tune."""
        try:
            replace_private(self.state, row_json.to_json(tune) + "\n")
        except OSError as error:
            with suppress(OSError):
                self.path.rmdir()
            raise HomeError(f"{self.state} cannot be written: {error.strerror}.") from None

    def request_stop(self) -> None:
        """Request the end of the tune, which keeps its results. Raises HomeError."""
        try:
            self.stop.touch(mode=0o600)
        except OSError as error:
            raise HomeError(f"{self.stop} cannot be written: {error.strerror}.") from None


def create_tune(home: Home, now_unix_s: float) -> TuneFolder:
    """Create the folder of a new tune. Raises HomeError."""
    home.check_writable()
    stamp = datetime.fromtimestamp(now_unix_s, UTC).strftime("%Y%m%d-%H%M%S")
    folder = TuneFolder(_folder_of(home) / f"{stamp}-{secrets.token_hex(2)}")
    try:
        folder.path.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise HomeError(f"No tune can be created in {home.path}: {error.strerror}.") from None
    return folder


def tunes(home: Home) -> list[TuneFolder]:
    """Return the folders of all tunes, the newest first."""
    try:
        names = [entry.name for entry in os.scandir(_folder_of(home)) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [TuneFolder(_folder_of(home) / name) for name in sorted(names, reverse=True)]


def find_tune(home: Home, key: str) -> TuneFolder:
    """Return the tune whose id begins with `key`, or the newest for "latest". Raises UnknownRunError."""
    folders = tunes(home)
    if key == "latest" and folders:
        return folders[0]
    matches = [folder for folder in folders if key and folder.tune_id.startswith(key)]
    if len(matches) == 1:
        return matches[0]
    if not folders:
        raise UnknownRunError("There is no tune yet; start one with `stepscope tune`.")
    ids = ", ".join(folder.tune_id for folder in (matches or folders)[:5])
    if matches:
        raise UnknownRunError(f"{key!r} matches {len(matches)} tunes; use the id of one: {ids}.")
    raise UnknownRunError(f"There is no tune {key!r}; the newest are: {ids}.")


def _folder_of(home: Home) -> Path:
    return home.path / "tunes"
