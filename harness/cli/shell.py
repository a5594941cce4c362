"""The shell that a command runs in: environment, output streams, home and runs."""

import json
import math
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.cli.streams import discard
from harness.errors import UnknownRunError
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.supervisor import Supervisor
from harness.words import printable

_WIDTH_WITHOUT_TERMINAL = 200


@dataclass(frozen=True)
class Shell:
    """`out` is for results, `err` for everything else. Neither interprets markup: names are text."""

    environ: Mapping[str, str]
    out: Console
    err: Console

    @classmethod
    def open(cls, environ: Mapping[str, str]) -> "Shell":
        """Open the shell of this process. Colors depend on NO_COLOR and on whether the stream is a terminal.
        Characters that the stream's encoding lacks are shown as "?"."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="replace")
        return cls(
            environ, _console(sys.stdout.isatty(), stderr=False), _console(sys.stderr.isatty(), stderr=True)
        )

    def home(self, arguments: Namespace) -> Home:
        """Return the home from --home or the environment."""
        return Home.locate(arguments.home, self.environ)

    def supervisor(self, arguments: Namespace) -> Supervisor:
        """Return the supervisor of that home."""
        return Supervisor(self.home(arguments))

    def print_line(self, text: str) -> None:
        """Print a line of the result to stdout."""
        self.out.print(Text(printable(text)), soft_wrap=True)

    def print_status(self, text: str) -> None:
        """Print a line to stderr; it is dropped if stderr cannot be written."""
        try:
            self.err.print(Text(printable(text)), soft_wrap=True)
        except OSError:
            discard(sys.stderr)

    def print_json(self, value: Any) -> None:
        """Print `value` as JSON; NaN and infinities, which JSON lacks, as strings."""
        self.out.file.write(json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")

    def print_table(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print rows of text under headings; a column with a heading ending in ">" is right-aligned."""
        names = [heading.rstrip(">") for heading in headings]
        rows = [[printable(cell) for cell in row] for row in rows]
        is_right = [heading.endswith(">") for heading in headings]
        if not self.out.is_terminal:
            self.out.file.writelines(_plain_lines(names, is_right, rows))
            return
        table = Table(box=None, pad_edge=False, header_style="bold", show_header=any(names))
        for name, right in zip(names, is_right, strict=True):
            table.add_column(Text(name), justify="right" if right else "left", overflow="fold", no_wrap=right)
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        self.out.print(table)


def _plain_lines(
    names: Sequence[str], is_right: Sequence[bool], rows: Sequence[Sequence[str]]
) -> Iterator[str]:
    """Yield the table's lines for a file or a pipe: not wrapped, not truncated, no trailing blanks."""
    lines = [names, *rows] if any(names) else list(rows)
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = []
        for cell, width, right in zip(line, widths, is_right, strict=True):
            blanks = " " * (width - cell_len(cell))
            cells.append(blanks + cell if right else cell + blanks)
        yield "  ".join(cells).rstrip() + "\n"


class _Console(Console):
    """A console that raises an error on a broken pipe instead of exiting."""

    def on_broken_pipe(self) -> None:
        """Raise the current BrokenPipeError again."""
        raise


def _console(is_terminal: bool, *, stderr: bool) -> Console:
    return _Console(
        stderr=stderr,
        markup=False,
        highlight=False,
        emoji=False,
        width=None if is_terminal else _WIDTH_WITHOUT_TERMINAL,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return value


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
