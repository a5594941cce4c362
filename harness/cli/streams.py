"""Standard streams that cannot be written: a full disk, a closed descriptor, a reader that has gone."""

import os
import sys
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import Any, TextIO


class OutputFile(FileIO):
    """The file under stdout, which remembers why it could not be written: argparse swallows such errors.

    Attributes:
        error: the first error, None while there was none.
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
    """A stream like `stream`, a standard one, and the file under it."""
    file = OutputFile(stream.fileno(), "w", closefd=False)
    is_buffered = isinstance(getattr(stream, "buffer", None), BufferedWriter)
    # Python itself puts no buffer under a stream that is to be written at once (PYTHONUNBUFFERED).
    under: Any = BufferedWriter(file) if is_buffered else file  # typeshed has no raw file here, Python does
    return TextIOWrapper(
        under,
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.isatty(),
        write_through=not is_buffered,
    ), file


def write_complaint(text: str) -> None:
    """Write `text` to stderr; where it cannot be written it is dropped, for nobody is left to read it."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Let `stream` go nowhere: what waits in it would fail once more when Python exits, with a traceback."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
    stream.flush()
