"""One run's folder: the paths of its files, its request, and the end of its output."""

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from harness.files.plain_json import json_object
from harness.files.regular import read_end, read_whole, write_private
from harness.records.imported import ImportOrigin
from harness.records.ranks import MOST_RANKS, RankPart
from harness.records.remote import RemoteRequest
from harness.records.script import ScriptOrigin
from harness.store.earlier_names import current_names
from harness.words import clip, printable

REQUEST = "request.json"
LONGEST_NAME = 200
# All settings with the longest paths take about 6 KB.
_MOST_REQUEST_BYTES = 256 << 10
_TAIL_BYTES_PER_LINE = 400
# The largest integer of SQLite, and the latest time that a calendar shows.
_LATEST_UNIX_NS = 2**63 - 1


class RunRequest(NamedTuple):
    """The request that created the run; `settings_json` is a JSON object."""

    run_id: str
    name: str
    created_unix_ns: int
    settings_json: str
    # The requester's token: requests with the same token are one request.
    request_id: str | None = None
    # The reason that the request cannot be read, in one sentence. None: it can, or there is none (yet). A run
    # without a request is named after its folder.
    problem: str | None = None
    # The command, for a run of a person's own script.
    script: ScriptOrigin | None = None
    # The source, for an imported run.
    imported: ImportOrigin | None = None
    # Where it trains; None: on the machine of the home.
    remote: RemoteRequest | None = None
    # The processes of its machine that train it.
    part: RankPart = RankPart()


@dataclass(frozen=True)
class RunFolder:
    """The self-contained folder of one run: copy it to share the run, delete it to delete the run.

    In a run of several processes each rank has files of its own; those of rank 0 have the names that a run of
    one process has.
    """

    path: Path
    rank: int = 0

    @property
    def run_id(self) -> str:
        """The run's id: the folder's name, with unprintable characters escaped."""
        return printable(self.path.name)

    @property
    def log(self) -> Path:
        """The log, which only the training process of the rank writes."""
        return self._of_rank("log", ".sqlite3")

    def rank_log(self, rank: int) -> Path:
        """Return the log of one rank of a run with several processes; that of rank 0 is `log`."""
        return RunFolder(self.path, rank).log

    def rank_logs(self) -> dict[int, Path]:
        """Return the existing logs by rank, in the order of ranks; a run of one process has rank 0 only."""
        first = self.rank_log(0)
        logs = {0: first} if _is_own_file(first) else {}
        for path in self.path.glob("log.rank*.sqlite3"):
            number = re.fullmatch(r"log\.rank([1-9][0-9]{0,5})\.sqlite3", path.name)
            if number and _is_own_file(path):
                logs[int(number[1])] = path
        return dict(sorted(logs.items()))

    @property
    def control(self) -> Path:
        """Commands to the run, and exits recorded by its parent."""
        return self.path / "control.sqlite3"

    @property
    def output(self) -> Path:
        """The output of the training process, both streams."""
        return self.path / "harness.log"

    @property
    def alive(self) -> Path:
        """The file that the training process locks while it lives; its mtime is the heartbeat."""
        return self._of_rank("alive")

    @property
    def captures(self) -> Path:
        """The folder of captured snapshots, traces and out-of-memory reports; missing without any."""
        return self._of_rank("captures")

    @property
    def labels(self) -> Path:
        """The run's tags and note (`harness.store.labels`)."""
        return self.path / "labels.json"

    @property
    def process(self) -> Path:
        """The training process's identity."""
        return self._of_rank("process", ".json")

    @property
    def rank_ends(self) -> Path:
        """The exit codes of the ranks that failed, written by the process that started them."""
        return self.path / "ranks.json"

    def _of_rank(self, name: str, extension: str = "") -> Path:
        return self.path / (f"{name}.rank{self.rank}{extension}" if self.rank else f"{name}{extension}")

    def request(self) -> RunRequest:
        """Read the request of the run. If it is missing or unreadable, the run is named after its folder, so
        that one damaged run does not hide the others."""
        path = self.path / REQUEST
        try:
            status = path.lstat()
        except FileNotFoundError:
            return self._without_request(None)
        except OSError as error:
            return self._without_request(f"{printable(str(path))} cannot be read: {error.strerror}.")
        request = _read_request(self, (status.st_ino, status.st_mtime_ns, status.st_size))
        return self._without_request(request) if isinstance(request, str) else request

    def script(self) -> ScriptOrigin | None:
        """Return the command of a script's run exactly as given, to run it: `request` has it for display,
        without unprintable characters and with long words clipped. Raises ValueError, OSError."""
        text = read_whole(self.path / REQUEST, _MOST_REQUEST_BYTES).decode("utf-8")
        return _to_origin(json_object(text).get("script"))

    def _without_request(self, problem: str | None) -> RunRequest:
        return RunRequest(self.run_id, self.run_id, self._modified_unix_ns(), "{}", problem=problem)

    def _modified_unix_ns(self) -> int:
        try:
            return min(max(0, self.path.stat().st_mtime_ns), _LATEST_UNIX_NS)
        except OSError:
            return 0

    def output_tail(self, lines: int = 20) -> list[str]:
        """Return the last `lines` lines of the output, without line ends; empty without an output."""
        try:
            text = read_end(self.output, lines * _TAIL_BYTES_PER_LINE).decode("utf-8", errors="replace")
        except OSError:
            return []
        return text.splitlines()[-lines:] if lines > 0 else []


def _is_own_file(path: Path) -> bool:
    """Return whether `path` is a regular file in the folder itself."""
    return path.is_file() and not path.is_symlink()


def shown_name(name: object, run_id: str) -> str:
    """Return `name` as one printable line of limited length; the run's id if `name` is empty or no text."""
    return clip(printable(name), LONGEST_NAME) if isinstance(name, str) and name.strip() else run_id


@lru_cache(maxsize=4096)
def _read_request(folder: RunFolder, stamp: tuple[int, ...]) -> RunRequest | str:
    """Return the request in `folder`, or the reason that it cannot be read; `stamp` changes with the file.

    Cached, because lists read every run's request several times per page.
    """
    del stamp
    path = folder.path / REQUEST
    try:
        values = json_object(read_whole(path, _MOST_REQUEST_BYTES).decode("utf-8"))
        return _to_request(folder, values)
    except OSError as error:
        return f"{printable(str(path))} cannot be read: {error.strerror}."
    except ValueError as error:
        return f"{printable(str(path))} is not a valid request: {printable(str(error))[:200]}."


def _to_request(folder: RunFolder, values: dict[str, object]) -> RunRequest:
    """Convert a JSON object to a request. Raises ValueError."""
    created, settings, request_id = (
        values.get(name) for name in ("created_unix_ns", "settings", "request_id")
    )
    if type(created) is not int or not 0 <= created <= _LATEST_UNIX_NS:
        raise ValueError("created_unix_ns is not a time in nanoseconds")
    if not isinstance(settings, dict):
        raise ValueError("settings is not a JSON object")
    return RunRequest(
        run_id=folder.run_id,
        name=shown_name(values.get("name"), folder.run_id),
        created_unix_ns=created,
        settings_json=current_names(json.dumps(settings)),
        request_id=request_id if isinstance(request_id, str) else None,
        script=_printable_origin(_to_origin(values.get("script"))),
        imported=_to_import(values.get("imported")),
        remote=_to_remote(values.get("remote")),
        part=_to_part(values),
    )


def _to_part(values: dict[str, object]) -> RankPart:
    """Convert the fields of a request to the processes of its machine. Raises ValueError."""
    ranks, first_rank, group_id, size = map(values.get, RankPart._fields, (1, 0, None, None))
    if type(ranks) is not int or not 1 <= ranks <= MOST_RANKS:
        raise ValueError("ranks is not a number of processes")
    if type(first_rank) is not int or not 0 <= first_rank <= MOST_RANKS:
        raise ValueError("first_rank is not a rank")
    if group_id is None:
        return RankPart(ranks, first_rank)
    if not isinstance(group_id, str) or type(size) is not int or not first_rank + ranks <= size <= MOST_RANKS:
        raise ValueError("group_id and size are not those of several machines")
    return RankPart(ranks, first_rank, group_id, size)


def _to_origin(value: object) -> ScriptOrigin | None:
    """Convert a JSON value to the origin of a script's run. Raises ValueError."""
    if value is None:
        return None
    from harness.records import json as row_json  # Only here: pydantic takes longer than a list of runs.

    return row_json.from_json(ScriptOrigin, json.dumps(value), ignore_unknown=True)


def _printable_origin(origin: ScriptOrigin | None) -> ScriptOrigin | None:
    if origin is None:
        return None
    words = [clip(printable(word), LONGEST_NAME) for word in origin.arguments]
    return origin._replace(command=clip(printable(origin.command), LONGEST_NAME), arguments=tuple(words))


def _to_import(value: object) -> ImportOrigin | None:
    """Convert a JSON value to the origin of an imported run. Raises ValueError."""
    if value is None:
        return None
    from harness.records import json as row_json  # As for the origin of a script.

    origin = row_json.from_json(ImportOrigin, json.dumps(value), ignore_unknown=True)
    return origin._replace(path=printable(origin.path))


def _to_remote(value: object) -> RemoteRequest | None:
    """Convert a JSON value to the place of a remote run. Raises ValueError."""
    if value is None:
        return None
    from harness.records import json as row_json  # As for the origin of a script.

    return row_json.from_json(RemoteRequest, json.dumps(value), ignore_unknown=True)


def write_request(folder: Path, request: RunRequest) -> None:
    """Write the request of a new run in `folder`."""
    values = {
        "run_id": request.run_id,
        "name": request.name,
        "created_unix_ns": request.created_unix_ns,
        "settings": json.loads(request.settings_json),
        "request_id": request.request_id,
        "script": None if request.script is None else request.script._asdict(),
        "imported": None if request.imported is None else request.imported._asdict(),
        "remote": None if request.remote is None else request.remote._asdict(),
        **request.part._asdict(),
    }
    write_private(folder / REQUEST, json.dumps(values, indent=1) + "\n")
