"""A run in a notebook: the link to its page, and the ends of cells."""

import sys
from collections.abc import Callable
from html import escape
from typing import Any

# The Live page, which is the first one, at the default address of the dashboard.
_PAGE = "http://localhost:8501/"


def in_notebook() -> bool:
    """Return whether IPython runs this code."""
    return _shell() is not None


def show(run: object) -> None:
    """Display `run` below the cell."""
    from IPython.display import display

    display(run)


def link(name: str, run_id: str) -> str:
    """Return the link to a run's page, as HTML."""
    if not run_id:
        return "Stepscope is disabled (STEPSCOPE_DISABLED=1)."
    address = f"{_PAGE}?run={escape(run_id)}"
    return (
        f'Stepscope watches this training as <a href="{address}" target="_blank">{escape(name)}</a> '
        "(start the page by <code>stepscope dashboard</code>)."
    )


def after_each_cell(function: Callable[[BaseException | None], bool]) -> None:
    """Call `function` with what each cell raised, or None, at the cell's end, until it returns False."""
    shell = _shell()
    if shell is None:
        return

    def ended(result: Any = None) -> None:
        error = None if result is None else result.error_before_exec or result.error_in_exec
        if not function(error):
            shell.events.unregister("post_run_cell", ended)

    shell.events.register("post_run_cell", ended)


def _shell() -> Any:
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()
