"""Export as a TensorBoard event file, by the package `tensorboard` itself."""

from collections.abc import Iterator
from typing import IO, Any

from harness.errors import MissingLibraryError
from harness.export.tables import TABLES, ColumnType
from harness.records.floats import decode_float
from harness.records.run import ZERO_IF_UNKNOWN, DeviceSampleRow, RunRow, StepRow
from harness.records.script import ScalarRow
from harness.store.reader import LogReader

# Numbers of a step that say nothing as a curve.
_NO_CURVES = frozenset({"step", "t_ns", "settings_version"})
_STEP_TAGS = {
    column.name: "loss" if column.name == "loss" else f"step/{column.name}"
    for column in TABLES["steps"].columns
    if column.type is not ColumnType.TEXT and column.name not in _NO_CURVES
}
_UNKNOWN_IF_ZERO = frozenset(_STEP_TAGS[name] for name in ZERO_IF_UNKNOWN)
_SAMPLE_TAGS = {
    column.name: f"device/{column.name}"
    for column in TABLES["device_samples"].columns
    if column.type is not ColumnType.TEXT and column.name not in ("seq", "t_ns", "step")
}
_VERSION = "brain.Event:2"


class EventFile:
    """Writes scalar events into an open file, in TensorBoard's own record format."""

    def __init__(self, file: IO[bytes], started_unix_ns: int) -> None:
        """Raises MissingLibraryError when the package `tensorboard` is missing."""
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError:
            raise MissingLibraryError("TensorBoard's library", "tensorboard") from None
        self._event: Any = Event
        self._summary: Any = Summary
        self._writer: Any = RecordWriter(file)
        self._started_s = started_unix_ns / 1e9
        self._write(Event(wall_time=self._started_s, file_version=_VERSION))

    def add(self, step: int, t_ns: int, values: dict[str, float]) -> None:
        """Append the values of one moment. TensorBoard stores floats of 32 bits."""
        if values:
            entries = [self._summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
            summary = self._summary(value=entries)
            wall_time_s = self._started_s + t_ns / 1e9
            self._write(self._event(wall_time=wall_time_s, step=step, summary=summary))

    def _write(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())


def write_events(reader: LogReader, run: RunRow, file: IO[bytes]) -> int:
    """Write steps, the script's scalars and device samples of a run as events; return their number.

    Raises MissingLibraryError when the package `tensorboard` is missing, LogError and OSError.
    """
    events, written = EventFile(file, run.started_unix_ns), 0
    for step, t_ns, values in _moments(reader):
        events.add(step, t_ns, values)
        written += 1
    return written


def _moments(reader: LogReader) -> Iterator[tuple[int, int, dict[str, float]]]:
    """Yield step, time and values of each row."""
    for steps in reader.tables.pages(StepRow):
        for row in steps:
            values = _tagged(row._replace(loss=decode_float(row.loss, row.loss_state)), _STEP_TAGS)
            yield row.step, row.t_ns, {tag: value for tag, value in values.items() if _is_known(tag, value)}
    for scalars in reader.tables.pages(ScalarRow):
        for scalar in scalars:
            value = decode_float(scalar.value, scalar.value_state)
            if value is not None:
                yield scalar.step, scalar.t_ns, {_scalar_tag(scalar.name): value}
    devices = reader.devices()
    for samples in reader.tables.pages(DeviceSampleRow):
        for sample in samples:
            values = _tagged(sample, _SAMPLE_TAGS)
            if len(devices) > 1:
                values = {f"{sample.device}/{tag}": value for tag, value in values.items()}
            yield sample.step, sample.t_ns, values


def _is_known(tag: str, value: float) -> bool:
    return value != 0 or tag not in _UNKNOWN_IF_ZERO


def _scalar_tag(name: str) -> str:
    """Return the tag of a script's scalar: its name, unless a figure of the steps has the same one."""
    return f"script/{name}" if name in _STEP_TAGS.values() else name


def _tagged(row: Any, tags: dict[str, str]) -> dict[str, float]:
    values = ((tag, getattr(row, name)) for name, tag in tags.items())
    return {tag: float(value) for tag, value in values if value is not None}
