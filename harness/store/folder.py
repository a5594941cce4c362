"""One run's folder: where its files lie, what was asked for, and the end of its output."""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from harness.plain_json import json_object
from harness.regular_files import read_end, read_whole, write_private
from harness.words import clip, printable

REQUEST = "request.json"
LONGEST_NAME = 200
# Every setting with its longest path takes some 6 KB.
_MOST_REQUEST_BYTES = 256 << 10
_TAIL_BYTES_PER_LINE = 400
# SQLite's integers end here, and so do the times that a calendar shows.
_LATEST_UNIX_NS = 2**63 - 1


class Request(NamedTuple):
    """The request that created the run; `settings_json` is the settings as a JSON object."""

    run_id: str
    name: str
    created_unix_ns: int
    settings_json: str
    # A token of the asker's: two requests that carry the same one are one request.
    request_id: str | None = None
    # Why the request cannot be read, in one sentence. None: it can, or there is none (yet); without one the
    # run is named after its folder.
    problem: str | None = None


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run, complete in itself: copy it to share the run, delete it to forget it."""

    path: Path

    @property
    def run_id(self) -> str:
        """The run's id: the folder's name, with what no page could show spelled out."""
        return printable(self.path.name)

    @property
    def log(self) -> Path:
        """The log, written by the training process alone."""
        return self.path / "log.sqlite3"

    @property
    def control(self) -> Path:
        """Commands to the run, and its exits as its parent saw them."""
        return self.path / "control.sqlite3"

    @property
    def output(self) -> Path:
        """What the training process printed, both streams."""
        return self.path / "harness.log"

    @property
    def alive(self) -> Path:
        """The file the training process holds locked while it lives; its mtime is the heartbeat."""
        return self.path / "alive"

    @property
    def captures(self) -> Path:
        """The folder of what was captured on the way: snapshots, and reports on memory running out. There is
        none as long as nothing was."""
        return self.path / "captures"

    @property
    def process(self) -> Path:
        """The training process's identity."""
        return self.path / "process.json"

    def request(self) -> Request:
        """The request of the run. A folder whose request is missing or unreadable is named after itself, so
        that one damaged run never hides the others."""
        path = self.path / REQUEST
        try:
            status = path.lstat()
        except FileNotFoundError:
            return self._without_request(None)
        except OSError as error:
            return self._without_request(f"{printable(str(path))} cannot be read: {error.strerror}.")
        request = _read_request(self, (status.st_ino, status.st_mtime_ns, status.st_size))
        return self._without_request(request) if isinstance(request, str) else request

    def _without_request(self, problem: str | None) -> Request:
        return Request(self.run_id, self.run_id, self._modified_unix_ns(), "{}", problem=problem)

    def _modified_unix_ns(self) -> int:
        try:
            return min(max(0, self.path.stat().st_mtime_ns), _LATEST_UNIX_NS)
        except OSError:
            return 0

    def output_tail(self, lines: int = 20) -> list[str]:
        """The last `lines` lines of the output, without line ends; empty when there is none."""
        try:
            text = read_end(self.output, lines * _TAIL_BYTES_PER_LINE).decode("utf-8", errors="replace")
        except OSError:
            return []
        return text.splitlines()[-lines:] if lines > 0 else []


def shown_name(name: object, run_id: str) -> str:
    """`name` on one line that every page and terminal can show, not too long; the run's id where it is no
    text or empty."""
    return clip(printable(name), LONGEST_NAME) if isinstance(name, str) and name.strip() else run_id


@lru_cache(maxsize=4096)
def _read_request(folder: RunFolder, stamp: tuple[int, ...]) -> Request | str:
    """The request in `folder`, or why it cannot be read, in one sentence; `stamp` changes with the file.

    Lists ask for every run's request several times per page.
    """
    del stamp
    path = folder.path / REQUEST
    try:
        values = json_object(read_whole(path, _MOST_REQUEST_BYTES).decode("utf-8"))
        return _to_request(folder, values)
    except OSError as error:
        return f"{printable(str(path))} cannot be read: {error.strerror}."
    except ValueError as error:
        return f"{printable(str(path))} is no request of a run: {printable(str(error))[:200]}."


def _to_request(folder: RunFolder, values: dict[str, object]) -> Request:
    """Raises ValueError."""
    created, settings, request_id = (
        values.get(name) for name in ("created_unix_ns", "settings", "request_id")
    )
    if type(created) is not int or not 0 <= created <= _LATEST_UNIX_NS:
        raise ValueError("created_unix_ns is no time in nanoseconds")
    if not isinstance(settings, dict):
        raise ValueError("settings is no JSON object")
    return Request(
        run_id=folder.run_id,
        name=shown_name(values.get("name"), folder.run_id),
        created_unix_ns=created,
        settings_json=json.dumps(settings),
        request_id=request_id if isinstance(request_id, str) else None,
    )


def write_request(
    folder: Path, name: str, created_unix_ns: int, settings_json: str, request_id: str | None = None
) -> None:
    """Write the request of a run that is being created in `folder`."""
    request = {
        "run_id": folder.name,
        "name": name,
        "created_unix_ns": created_unix_ns,
        "settings": json.loads(settings_json),
        "request_id": request_id,
    }
    write_private(folder / REQUEST, json.dumps(request, indent=1) + "\n")
