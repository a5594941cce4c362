"""Standard streams that cannot be written: a full disk, a closed descriptor, a broken pipe."""

import os
import sys
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import Any, TextIO


class OutputFile(FileIO):
    """The file of stdout, which stores its first write error: argparse ignores such errors.

    Attributes:
        error: the first error; None without one.
    """

    error: OSError | None = None

    def write(self, data: "bytes | bytearray | memoryview", /) -> int | None:  # type: ignore[override]
        """Write `data`; raises OSError."""
        try:
            return super().write(data)
        except OSError as error:
            self.error = self.error or error
            raise


def watch_output(stream: TextIO) -> tuple[TextIO, OutputFile]:
    """Return a stream equivalent to the standard stream `stream`, and its file."""
    file = OutputFile(stream.fileno(), "w", closefd=False)
    is_buffered = isinstance(getattr(stream, "buffer", None), BufferedWriter)
    # With PYTHONUNBUFFERED, Python puts no buffer under the stream.
    under: Any = BufferedWriter(file) if is_buffered else file  # typeshed has no raw file here, Python does
    return TextIOWrapper(
        under,
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.isatty(),
        write_through=not is_buffered,
    ), file


def write_error(text: str) -> None:
    """Write `text` to stderr; it is dropped if stderr cannot be written."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        discard(sys.stderr)


def leave_streams_closed() -> None:
    """Have a script find None in place of the standard streams that were closed when the process began, as
    Python gives it: there `print` does nothing, where it fails on the reopened descriptor."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, f"__{name}__") is None:
            setattr(sys, name, None)


def discard(stream: TextIO) -> None:
    """Redirect `stream` to the null device: its buffered text would fail again when Python exits, with a
    traceback."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
    stream.flush()
