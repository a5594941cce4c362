"""The shell that a command runs in: environment, output streams, home and runs."""

import json
import math
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any

from harness.cli.streams import discard
from harness.errors import UnknownRunError
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.words import printable

if TYPE_CHECKING:
    from rich.console import Console

    from harness.supervisor import Supervisor

RUN_HELP = "id, name, an unambiguous beginning, or 'latest'"


@dataclass(frozen=True)
class Shell:
    """The streams, the environment and the home of one command. No stream interprets markup: names are
    text."""

    environ: Mapping[str, str]

    @classmethod
    def open(cls, environ: Mapping[str, str]) -> "Shell":
        """Open the shell of this process. Characters that a stream's encoding lacks are shown as "?"."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="replace")
        return cls(environ)

    @cached_property
    def out(self) -> "Console":
        """The console for results. Colors depend on NO_COLOR and on whether the stream is a terminal."""
        return _console(is_stderr=False)

    @cached_property
    def err(self) -> "Console":
        """The console for everything else."""
        return _console(is_stderr=True)

    def home(self, arguments: Namespace) -> Home:
        """Return the home from --home or the environment."""
        return Home.locate(arguments.home, self.environ)

    def supervisor(self, arguments: Namespace) -> "Supervisor":
        """Return the supervisor of that home."""
        from harness.supervisor import Supervisor  # Only here: a list of ended runs needs no supervisor.

        return Supervisor(self.home(arguments))

    def print_line(self, text: str) -> None:
        """Print a line of the result to stdout."""
        self.out.print(printable(text), soft_wrap=True)

    def print_status(self, text: str) -> None:
        """Print a line to stderr; it is dropped if stderr cannot be written."""
        try:
            self.err.print(printable(text), soft_wrap=True)
        except OSError:
            discard(sys.stderr)

    def print_json(self, value: Any) -> None:
        """Print `value` as JSON; NaN and infinities, which JSON lacks, as strings."""
        sys.stdout.write(json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")

    def print_json_lines(self, values: Sequence[Mapping[str, Any]]) -> None:
        """Print a JSON array with one line per value: of long lists faster than `print_json`."""
        sys.stdout.write("[\n" + ",\n".join(map(_json_line, values)) + "\n]\n" if values else "[]\n")

    def print_table(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print rows of text under headings; a column with a heading ending in ">" is right-aligned."""
        names = [heading.rstrip(">") for heading in headings]
        rows = [[printable(cell) for cell in row] for row in rows]
        is_right = [heading.endswith(">") for heading in headings]
        if sys.stdout.isatty():
            from harness.cli.console import table

            self.out.print(table(names, is_right, rows))
        else:
            sys.stdout.writelines(_plain_lines(names, is_right, rows))


def _plain_lines(
    names: Sequence[str], is_right: Sequence[bool], rows: Sequence[Sequence[str]]
) -> Iterator[str]:
    """Yield the table's lines for a file or a pipe: not wrapped, not truncated, no trailing blanks."""
    from rich.cells import cell_len

    lines = [names, *rows] if any(names) else list(rows)
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = []
        for cell, width, right in zip(line, widths, is_right, strict=True):
            blanks = " " * (width - cell_len(cell))
            cells.append(blanks + cell if right else cell + blanks)
        yield "  ".join(cells).rstrip() + "\n"


def _console(*, is_stderr: bool) -> "Console":
    from harness.cli.console import open_console  # Only here: a list as JSON needs no console.

    return open_console(is_stderr=is_stderr)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return value


def _json_line(value: Mapping[str, Any]) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:  # NaN or infinity.
        return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False)


def find_run(home: Home, key: str) -> RunFolder:
    """Return the run `key`: an id, a name, an unambiguous beginning of one, or "latest".

    Raises UnknownRunError.
    """
    if key != "latest":
        return home.find(key)
    runs = home.runs()
    if not runs:
        raise UnknownRunError(f"There are no runs in {home.path} yet; start one with `stepscope run`.")
    return runs[0]
