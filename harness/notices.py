"""Lines of Stepscope's own on the standard error of a training, which may be closed, full or replaced."""

import os
import sys
import traceback
from contextlib import suppress


def print_notice(text: str) -> None:
    """Print a line on standard error; it is dropped where that cannot be written."""
    write_to_stderr(f"stepscope: {text}\n")


def print_traceback(error: BaseException) -> None:
    """Print an error as Python does; it is dropped where standard error cannot be written."""
    write_to_stderr("".join(traceback.format_exception(error)))


def write_to_stderr(text: str) -> None:
    """Write `text` to standard error, and nowhere else; it is dropped if that fails."""
    stream, is_replaced = sys.stderr, sys.stderr is not sys.__stderr__
    if stream is None:  # `print` would take standard output in its place.
        return
    if is_replaced:
        with suppress(Exception):  # It is an object of the script's own, which may raise anything.
            print(text, end="", file=stream)
            stream.flush()
        return
    with suppress(OSError, ValueError):  # It is full, closed, or a pipe that nobody reads.
        # Past its buffer: what cannot be written would fail again at the end of the process, and change its
        # exit code.
        stream.flush()
        os.write(stream.fileno(), text.encode(stream.encoding, "backslashreplace"))
