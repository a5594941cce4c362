"""Callbacks of widgets that run to their end.

Streamlit ends the run of a page when another one is requested, at the next access to the session state, and a
callback is a part of that run. What it has not done by then never happens: to the next run the widget's value
is an old one. So a change is lost when a tick of the page has brought its value, and its own request comes
while the callback runs. `tests/architecture/test_style.py` holds that every callback is one of these.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

from streamlit.runtime.scriptrunner import get_script_run_ctx

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# Of Streamlit's session state: called at each access, raises where the run is to end.
_INTERRUPT = "_yield_callback"


def to_the_end(callback: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return `callback` without interruptions; the requested run follows it."""

    @wraps(callback)
    def run(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        with _without_interruptions():
            return callback(*arguments, **options)

    return run


@contextmanager
def _without_interruptions() -> Iterator[None]:
    context = get_script_run_ctx(suppress_warning=True)
    session = None if context is None else context.session_state
    if session is None or _INTERRUPT not in vars(session):
        yield
        return
    interrupt = vars(session)[_INTERRUPT]
    vars(session)[_INTERRUPT] = _nothing
    try:
        yield
    finally:
        vars(session)[_INTERRUPT] = interrupt


def _nothing() -> None:
    """In place of the interruption."""
