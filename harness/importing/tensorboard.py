"""Import of a TensorBoard log: its scalars become those of a run, and everything else is n/a.

Records and messages are read by the package `tensorboard` itself.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import harness
from harness.errors import HomeError, MissingLibraryError, UsageError
from harness.importing.imported import Imported
from harness.records.floats import encode_float
from harness.records.imported import ImportOrigin, ImportSource
from harness.records.run import RunRow, RunState
from harness.records.script import ScalarRow
from harness.store.appender import LogAppender
from harness.store.folder import RunFolder, RunRequest
from harness.store.home import Home
from harness.store.inserts import StateChange
from harness.store.reader import MOST_STEPS
from harness.words import clip, plural, printable

_MARK = "tfevents"
_ROWS_AT_ONCE = 10_000
_MOST_FILES = 10_000
_LONGEST_NAME = 200
# As for the scalars of a script: with more, names contain step numbers.
_MOST_NAMES = 1_000
# In the year 2242.
_END_UNIX_S = 2**33
# A record has a length, its checksum, the data, and their checksum.
_RECORD_BYTES = 8 + 4 + 4
_LARGEST_HALF = 0xFFFF  # The bits of a float16.


class _Scalar(NamedTuple):
    """A value; `unix_s` is None where its time is none that a calendar shows."""

    name: str
    step: int
    unix_s: float | None
    value: float


def event_files(path: Path) -> list[Path]:
    """Return TensorBoard's event files in a folder and the folders in it, in the order of their names. Links
    are not followed, and anything but a regular file is left out."""
    files: list[Path] = []
    for folder, folders, names in os.walk(path, followlinks=False):
        folders.sort()
        for name in sorted(names):
            file = Path(folder, name)
            if _MARK in name:
                with suppress(FileNotFoundError):  # It was deleted meanwhile.
                    if stat.S_ISREG(file.lstat().st_mode):
                        files.append(file)
        if len(files) > _MOST_FILES:
            raise UsageError(
                f"{printable(str(path))} has more than {_MOST_FILES:,} event files; name one run."
            )
    return files


def import_events(
    home: Home, path: Path, files: Sequence[Path], name: str | None, now_unix_ns: int
) -> Imported:
    """Write the scalars in `files` as a run of `home`. Those of a folder within `path` have its name before
    theirs, as TensorBoard shows them. Raises as `import_folder`."""
    log = _EventLog(path, files)
    began_unix_s = log.began_unix_s()
    if began_unix_s is None:
        raise UsageError(f"{printable(str(path))} has event files, but none of them can be read.")
    began_unix_ns = int(began_unix_s * 1e9)
    origin = ImportOrigin(ImportSource.TENSORBOARD, printable(str(path)), now_unix_ns)
    request = RunRequest("", "", began_unix_ns, "{}")
    folder = home.create_imported(name, printable(path.name) or "TensorBoard", request, origin)
    try:
        chosen = folder.request().name
        contents = _write(folder, chosen, log, began_unix_ns)
    except BaseException:
        with suppress(HomeError):
            home.remove(folder)
        raise
    return Imported(folder, chosen, contents, tuple(log.notes()))


def _write(folder: RunFolder, name: str, log: "_EventLog", began_unix_ns: int) -> str:
    """Write the log of the run; return its contents in words."""
    ended_unix_ns, values = began_unix_ns, 0
    spool: list[ScalarRow] = []
    run = RunRow(
        folder.run_id, name, began_unix_ns, harness.__version__, "{}", "{}", None, "{}", "", 0,
        RunState.RUNNING, "", None,
    )  # fmt: skip
    with LogAppender(folder.log, run) as appender:
        for scalar in log.scalars():
            unix_ns = began_unix_ns if scalar.unix_s is None else int(scalar.unix_s * 1e9)
            ended_unix_ns = max(ended_unix_ns, unix_ns)
            t_ns = max(0, unix_ns - began_unix_ns)
            spool.append(ScalarRow(scalar.step, scalar.name, t_ns, *encode_float(scalar.value)))
            values += 1
            if len(spool) >= _ROWS_AT_ONCE:
                appender.append(rows=spool)
                spool = []
        if not values:
            raise UsageError("The event files have no scalars, which is all that is imported.")
        contents = f"{plural(len(log.names), 'scalar')} with {plural(values, 'value')}"
        message = f"Imported from a TensorBoard log: {contents}."
        change = StateChange(RunState.FINISHED, message, ended_unix_ns, None)
        appender.append(rows=spool, states=[change], durable=True)
    return contents


def _valid_time(unix_s: float) -> float | None:
    """Return `unix_s`, which may be anything; None unless it is from 0 to before `_END_UNIX_S`."""
    return unix_s if 0 <= unix_s < _END_UNIX_S else None


class _EventLog:
    """The event files of one log.

    Attributes:
        names: the names of the scalars that were read.
    """

    def __init__(self, path: Path, files: Sequence[Path]) -> None:
        """Raises MissingLibraryError when the package `tensorboard` is missing."""
        try:
            from google.protobuf.message import DecodeError
            from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.util.tensor_util import make_ndarray
        except ImportError:
            raise MissingLibraryError("TensorBoard's library", "tensorboard") from None
        self._records: Any = RawEventFileLoader
        self._event: Any = Event
        self._no_event: type[Exception] = DecodeError
        self._to_array: Any = make_ndarray
        self._path = path
        self._files = files
        self.names: set[str] = set()
        self._torn: list[str] = []
        self._others: set[str] = set()
        self._surplus: set[str] = set()
        self._invalid_steps = 0

    def began_unix_s(self) -> float | None:
        """Return the time of the first event; None if there is none."""
        firsts = (next(self._events(file), None) for file in self._files)
        times = (_valid_time(event.wall_time) for event in firsts if event is not None)
        began_unix_s = min((unix_s for unix_s in times if unix_s is not None), default=None)
        self._torn = []
        return began_unix_s

    def scalars(self) -> Iterator[_Scalar]:
        """Yield the scalars of all files."""
        for file in self._files:
            part = file.parent.relative_to(self._path).as_posix()
            prefix = "" if part == "." else f"{part}/"
            plugins: dict[str, str] = {}
            for event in self._events(file):
                for value in event.summary.value:
                    if value.HasField("metadata"):  # TensorFlow writes it with a tag's first value only.
                        plugins.setdefault(value.tag, value.metadata.plugin_data.plugin_name)
                    number = self._number(value, plugins.get(value.tag))
                    name = clip(printable(prefix + value.tag), _LONGEST_NAME)
                    if number is None:
                        self._others.add(name)
                    elif self._has_room_for(name, event.step):
                        yield _Scalar(name, event.step, _valid_time(event.wall_time), number)

    def notes(self) -> Iterator[str]:
        """Yield a sentence for each kind of thing that was left out."""
        for name in self._torn:
            yield f"{name} is damaged or incomplete at its end; what comes before is imported."
        if self._others:
            yield f"{plural(len(self._others), 'tag')} left out: not scalars (images, texts, histograms, …)."
        if self._surplus:
            yield f"{plural(len(self._surplus), 'scalar')} left out: more than {_MOST_NAMES:,}."
        if self._invalid_steps:
            yield f"{plural(self._invalid_steps, 'value')} left out: their steps are negative or too large."

    def _events(self, file: Path) -> Iterator[Any]:
        consumed = 0
        try:
            size = file.stat().st_size
            for record in self._records(str(file)).Load():
                event = self._event.FromString(record)
                consumed += _RECORD_BYTES + len(record)
                yield event
        except self._no_event:
            pass  # A record of something else, after which nothing is read.
        except (OSError, ValueError) as error:
            reason = (getattr(error, "strerror", None) or str(error)).lower()
            raise UsageError(f"{printable(str(file))} cannot be read: {printable(reason)[:200]}.") from None
        if consumed < size:
            self._torn.append(printable(str(file.relative_to(self._path))))

    def _number(self, value: Any, plugin: str | None) -> float | None:
        """Return the number of a value; None if it is none. TensorBoard 2 stores tensors, PyTorch floats."""
        kind = value.WhichOneof("value")
        if kind == "simple_value":
            return float(value.simple_value)
        if kind != "tensor" or plugin != "scalars":
            return None
        tensor = value.tensor
        if any(dim.size != 1 for dim in tensor.tensor_shape.dim):  # Before anything is allocated for it.
            return None
        if any(bits > _LARGEST_HALF for bits in tensor.half_val):  # NumPy 1 would drop the bits above.
            return None
        try:
            return float(self._to_array(tensor).item())
        except (TypeError, ValueError, AttributeError, KeyError, OverflowError):
            return None

    def _has_room_for(self, name: str, step: int) -> bool:
        if not 0 <= step < MOST_STEPS:
            self._invalid_steps += 1
            return False
        if name not in self.names:
            if len(self.names) >= _MOST_NAMES:
                self._surplus.add(name)
                return False
            self.names.add(name)
        return True
