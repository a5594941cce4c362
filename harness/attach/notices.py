"""Lines of Stepscope's own on the standard error of a script, which may be closed, full or replaced."""

import os
import sys
import traceback
from contextlib import suppress


def print_notice(text: str) -> None:
    """Print a line on the script's standard error; it is dropped where that cannot be written."""
    write_to_stderr(f"stepscope: {text}\n")


def print_traceback(error: BaseException) -> None:
    """Print an error as Python does; it is dropped where standard error cannot be written."""
    write_to_stderr("".join(traceback.format_exception(error)))


def write_to_stderr(text: str) -> None:
    """Write `text` to the script's standard error, and nowhere else; it is dropped if that fails."""
    stream, is_replaced = sys.stderr, sys.stderr is not sys.__stderr__
    if stream is None:  # `print` would take standard output in its place.
        return
    with suppress(OSError, ValueError):  # It is full, closed, or a pipe that nobody reads.
        if is_replaced:  # By the script.
            print(text, end="", file=stream, flush=True)
            return
        # Past its buffer: what cannot be written would fail again at the end of the process, and change its
        # exit code.
        stream.flush()
        os.write(stream.fileno(), text.encode(stream.encoding, "backslashreplace"))
