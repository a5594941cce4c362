"""Consoles and tables for a terminal. Imported when the first line is printed."""

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDTH_WITHOUT_TERMINAL = 200


class _Console(Console):
    """A console that raises an error on a broken pipe instead of exiting."""

    def on_broken_pipe(self) -> None:
        """Raise the current BrokenPipeError again."""
        raise


def open_console(*, is_stderr: bool) -> Console:
    """Open the console of a standard stream; it interprets no markup."""
    is_terminal = (sys.stderr if is_stderr else sys.stdout).isatty()
    return _Console(
        stderr=is_stderr,
        markup=False,
        highlight=False,
        emoji=False,
        width=None if is_terminal else _WIDTH_WITHOUT_TERMINAL,
    )


def table(names: Sequence[str], is_right: Sequence[bool], rows: Sequence[Sequence[str]]) -> Table:
    """Build a table without lines; columns are right-aligned as `is_right` says."""
    result = Table(box=None, pad_edge=False, header_style="bold", show_header=any(names))
    for name, right in zip(names, is_right, strict=True):
        result.add_column(Text(name), justify="right" if right else "left", overflow="fold", no_wrap=right)
    for row in rows:
        result.add_row(*(Text(cell) for cell in row))
    return result
