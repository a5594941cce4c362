"""Writes a report: `python -m dashboard.report --home FOLDER --output FILE FOLDER…` (`stepscope report`)."""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dashboard.report.build import report_of
from harness.errors import StepscopeError
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.supervisor import Supervisor
from harness.words import printable


def main(words: Sequence[str]) -> int:
    """Write the report and return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--force", action="store_true")
    parser.add_argument("folders", nargs="+")
    arguments = parser.parse_args(words)
    try:
        supervisor = Supervisor(Home(Path(arguments.home)), is_read_only=True)
        page = report_of(supervisor, [RunFolder(Path(path)) for path in arguments.folders])
        write(Path(arguments.output), page, is_forced=arguments.force)
    except StepscopeError as error:
        sys.stderr.write(f"stepscope: {printable(str(error))}\n")
        return error.exit_code
    return 0


def write(path: Path, page: str, *, is_forced: bool) -> None:
    """Write a file completely or not at all. Raises StepscopeError, also for an existing file unless
    `is_forced`."""
    part = None
    try:
        if path.is_dir():
            raise StepscopeError(f"{path} is a folder; name a file in it with -o.")
        if path.exists() and not is_forced:
            raise StepscopeError(f"{path} exists; name another file with -o, or overwrite it with --force.")
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
            part = Path(file.name)
            file.write(page)
        os.replace(part, path)
    except OSError as error:
        if part is not None:
            part.unlink(missing_ok=True)
        reason = (error.strerror or str(error)).lower()
        raise StepscopeError(f"{path} cannot be written: {reason}; name another file with -o.") from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
