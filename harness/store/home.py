"""The home folder of all runs: listing, search, creation and removal."""

import difflib
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from stat import S_ISDIR
from typing import TYPE_CHECKING

from platformdirs import user_data_dir

from harness.catalog.own import parse_own
from harness.errors import HomeError, UnknownRunError, UsageError
from harness.records.imported import ImportOrigin
from harness.records.ranks import RankPart
from harness.records.remote import RemoteRequest
from harness.records.script import ScriptOrigin
from harness.store.folder import LONGEST_NAME, RunFolder, RunRequest, write_request
from harness.store.locking import PATIENCE_S, exclusive
from harness.store.mounts import refuse_network
from harness.words import printable

if TYPE_CHECKING:
    from harness.settings import Settings

_ALONE = RankPart()
_CHOOSE = "choose another folder with --home or STEPSCOPE_HOME."
# Of the names of scripts, which get a number.
_LONGEST_STEM = 60
# The ids that `create` gives.
_RUN_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")
# The prefix of a folder without its request, which is about to be written.
_UNFINISHED = ".new-"
# The cached list of runs (`harness.store.run_index`).
INDEX = "run-index.jsonl"
# Stepscope's own entries of a home, in this version and older ones.
_OWN_ENTRIES = frozenset(
    {
        ".lock",
        ".starting",
        "alerts",
        "dashboard-token",
        "models.json",
        "predictions",
        "queue-worker",
        "queue.log",
        "queue.sqlite3",
        "queue.sqlite3-journal",
        "runs",
        "tunes",
        INDEX,
    }
)


@dataclass(frozen=True)
class Home:
    """The folder that contains the folders of all runs."""

    path: Path
    # The time that a start waits for the lock of another process.
    patience_s: float = PATIENCE_S

    @classmethod
    def locate(cls, flag: str | None, environ: Mapping[str, str]) -> "Home":
        """Return the home that `flag`, else STEPSCOPE_HOME, else the platform's user data folder names."""
        chosen = flag or environ.get("STEPSCOPE_HOME") or user_data_dir("stepscope")
        return cls(Path(chosen).expanduser().absolute())

    @property
    def runs_path(self) -> Path:
        """The folder of the run folders."""
        return self.path / "runs"

    def check_writable(self, mountinfo: str | None = None) -> None:
        """Create the home if it is missing, and raise HomeError when runs cannot be written there.

        Its content is private to its owner, also when an older version created it with other permissions.
        `mountinfo` replaces /proc/self/mountinfo.
        """
        try:
            self._make_private()
            with tempfile.TemporaryFile(dir=self.runs_path):
                pass
        except (FileExistsError, NotADirectoryError):
            raise HomeError(_no_folder(self.path)) from None
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise HomeError(f"Runs cannot be written to {self.path}: {reason}; {_CHOOSE}") from None
        refuse_network(self.runs_path, mountinfo)

    def _make_private(self) -> None:
        """Create the folders, and make them private. A home with other entries may be shared intentionally
        (it could be /tmp): then only `runs` is made private. Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.mkdir(mode=0o700, exist_ok=True)
        self.runs_path.mkdir(mode=0o700, exist_ok=True)
        _make_folder_private(self.runs_path)
        if set(os.listdir(self.path)) <= _OWN_ENTRIES:
            _make_folder_private(self.path)

    def starting(self) -> AbstractContextManager[None]:
        """Lock the home so that all of its supervisors start runs one at a time. Raises HomeError when
        another process does not release the lock."""
        return exclusive(self.runs_path / ".starting", self.patience_s)

    def folder_names(self) -> list[str]:
        """Return the names of the folders of all runs, in no order; none if the home does not exist."""
        try:
            with os.scandir(self.runs_path) as entries:
                return [
                    entry.name
                    for entry in entries
                    if not entry.name.startswith(".")
                    and (entry.is_dir(follow_symlinks=False) or _is_folder(entry.path))
                ]
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            raise HomeError(_no_folder(self.path)) from None
        except OSError as error:
            raise HomeError(f"{self.runs_path} cannot be read: {error.strerror}; {_CHOOSE}") from None

    def runs(self) -> list[RunFolder]:
        """Return the folders of all runs, the newest first; none if the home does not exist."""
        return self._newest_first(self.folder_names())

    def newest(self, count: int) -> list[RunFolder]:
        """Return the newest `count` runs, the newest first: the ids begin with the time of creation, so that
        not every request is read."""
        names = self.folder_names()
        by_id = sorted((name for name in names if _RUN_ID.fullmatch(name)), reverse=True)[:count]
        renamed = [name for name in names if not _RUN_ID.fullmatch(name)]
        return self._newest_first([*by_id, *renamed])[:count]

    def _newest_first(self, names: Iterable[str]) -> list[RunFolder]:
        folders = [RunFolder(self.runs_path / name) for name in names]
        return sorted(folders, key=lambda f: (f.request().created_unix_ns, f.run_id), reverse=True)

    def has(self, folder: RunFolder) -> bool:
        """Return whether `runs` still lists the run."""
        return _is_folder(folder.path)

    def find(self, key: str) -> RunFolder:
        """Return the run with the id or name `key`, or the only one whose id or name begins with it.

        Raises UnknownRunError, with the nearest name or the candidates.
        """
        if _RUN_ID.fullmatch(key) and _is_folder(self.runs_path / key):
            return RunFolder(self.runs_path / key)  # Without reading the requests of all runs.
        runs = [(folder, folder.request().name) for folder in self.runs()]
        for folder, _ in runs:
            if folder.run_id == key:
                return folder
        exact = [folder for folder, name in runs if name == key]
        prefixed = [f for f, name in runs if key and (f.run_id.startswith(key) or name.startswith(key))]
        for matches in (exact, prefixed):
            if len(matches) == 1:
                return matches[0]
            if matches:
                ids = ", ".join(folder.run_id for folder in matches[:5])
                more = ", …" if len(matches) > 5 else ""
                raise UnknownRunError(f"{key!r} matches {len(matches)} runs; use the id of one: {ids}{more}.")
        names = [word for folder, name in runs for word in (name, folder.run_id)]
        near = difflib.get_close_matches(key, names, n=1) or [name for name in names if key and key in name]
        hint = f"did you mean {near[0]!r}?" if near else "`stepscope list` shows them all."
        raise UnknownRunError(f"There is no run {key!r} in {self.path}; {hint}")

    def check_name(self, name: str) -> None:
        """Raise UsageError when no new run can have the name: it is taken or not usable."""
        _validate_name(name, {folder.request().name for folder in self.runs()})

    def create(
        self,
        name: str | None,
        settings: "Settings",
        now_unix_ns: int,
        request_id: str | None = None,
        remote: RemoteRequest | None = None,
        part: RankPart = _ALONE,
    ) -> RunFolder:
        """Create the folder of a new run, with its request; `name` None: the model's name and a number.
        `part` are the processes of this machine that train it.

        Raises UsageError when the name is taken or not usable, HomeError when the home cannot be written.
        """
        request = RunRequest(
            "",
            "",
            now_unix_ns,
            settings.model_dump_json(),
            request_id,
            remote=remote,
            part=part,
        )
        return self._create(name, name_stem(settings.model), request)

    def create_for_script(
        self,
        name: str | None,
        origin: ScriptOrigin,
        now_unix_ns: int,
        request_id: str | None = None,
        part: RankPart = _ALONE,
        remote: RemoteRequest | None = None,
        *,
        may_repeat: bool = False,
    ) -> RunFolder:
        """Create the folder of a run that trains a script; as `create`, named after the script. With
        `may_repeat` a name that is taken gets a number, from 2 on."""
        module = origin.command.removeprefix("-m ")
        stem = Path(module).stem if module == origin.command else module.rpartition(".")[2]
        request = RunRequest(
            "",
            "",
            now_unix_ns,
            "{}",
            request_id,
            script=origin,
            remote=remote,
            part=part,
        )
        return self._create(name, printable(stem)[:_LONGEST_STEM], request, may_repeat=may_repeat)

    def create_imported(
        self, name: str | None, own_name: str, request: RunRequest, origin: ImportOrigin
    ) -> RunFolder:
        """Create the folder of an imported run with the time, settings and script of `request`; as `create`.
        `name` None: `own_name`, with a number if it is taken."""
        created_unix_ns = min(request.created_unix_ns, time.time_ns())
        request = request._replace(
            created_unix_ns=created_unix_ns, request_id=None, imported=origin, remote=None
        )
        return self._create(name, own_name[: LONGEST_NAME - 10], request)

    def _create(
        self, name: str | None, stem: str, request: RunRequest, *, may_repeat: bool = False
    ) -> RunFolder:
        """Create the folder of `request`, which gets its id and its name here."""
        self.check_writable()
        # Two concurrent starts must not get the same name.
        with exclusive(self.runs_path / ".lock", self.patience_s):
            names = {folder.request().name for folder in self.runs()}
            if name is not None:
                chosen = _repeated_name(name, names) if may_repeat else _validate_name(name, names)
            else:
                chosen = stem if request.imported and stem not in names else _free_name(stem, names)
            stamp = datetime.fromtimestamp(request.created_unix_ns / 1e9, UTC).strftime("%Y%m%d-%H%M%S")
            folder = RunFolder(self.runs_path / f"{stamp}-{secrets.token_hex(2)}")
            while folder.path.exists():
                folder = RunFolder(self.runs_path / f"{stamp}-{secrets.token_hex(2)}")
            self._remove_unfinished()
            unfinished = self.runs_path / f"{_UNFINISHED}{secrets.token_hex(8)}"
            try:
                unfinished.mkdir(mode=0o700)
                write_request(unfinished, request._replace(run_id=folder.run_id, name=chosen))
                # Listed only from now on: without its request a run would be listed under another name.
                unfinished.rename(folder.path)
            except OSError as error:
                shutil.rmtree(unfinished, ignore_errors=True)
                raise HomeError(f"No run could be created in {self.path}: {error.strerror}.") from None
        return folder

    def _remove_unfinished(self) -> None:
        """Remove what is left of starts that were killed. Only under the lock of `_create`."""
        for unfinished in self.runs_path.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(unfinished, ignore_errors=True)

    def remove(self, folder: RunFolder) -> None:
        """Remove a run that has ended, permanently and atomically. Of a run that is a link to a folder, only
        the link is removed."""
        # Without the run's name, which may have the maximum length.
        trash = self.runs_path / f".trash-{secrets.token_hex(8)}"
        try:
            if folder.path.is_symlink():
                folder.path.unlink()
                return
            folder.path.rename(trash)
            shutil.rmtree(trash)
        except FileNotFoundError:
            return
        except OSError as error:
            rest = f" The remaining files are in {trash}." if trash.exists() else ""
            reason = error.strerror or str(error)
            raise HomeError(f"{folder.path} could not be deleted: {reason}.{rest}") from None


def _no_folder(path: Path) -> str:
    return f"{path} cannot be the home: it, or its 'runs', is a file; {_CHOOSE}"


def _make_folder_private(path: Path) -> None:
    status = path.stat()
    if status.st_uid == os.getuid() and status.st_mode & 0o077:
        path.chmod(0o700)


def _is_folder(path: str | Path) -> bool:
    """Return whether there may be a run. A circular link is listed, so that it can be deleted."""
    try:
        return S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def name_stem(model: str) -> str:
    """Return what the names of runs of a model begin with: its key, or the name of a person's own file."""
    own = parse_own(model)
    return model if own is None else printable(own.file.stem)[:_LONGEST_STEM]


def _repeated_name(name: str, names: set[str]) -> str:
    chosen = _validate_name(name, set())
    if chosen not in names:
        return chosen
    return _validate_name(_free_name(chosen[: LONGEST_NAME - 10], names, first=2), names)


def _free_name(stem: str, names: set[str], first: int = 1) -> str:
    number = first
    while f"{stem}-{number}" in names:
        number += 1
    return f"{stem}-{number}"


def _validate_name(name: str, names: set[str]) -> str:
    chosen = " ".join(name.split())
    if not chosen or not chosen.isprintable():
        raise UsageError(f"A run cannot be named {name!r}; use printable text, or leave the name out.")
    if len(chosen) > LONGEST_NAME:
        raise UsageError(f"The name has {len(chosen)} characters; at most {LONGEST_NAME} are allowed.")
    if chosen in names:
        raise UsageError(f"There is already a run named {chosen!r}; choose another name or delete that run.")
    return chosen
