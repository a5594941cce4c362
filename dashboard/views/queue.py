"""The queue on the Runs page: the entries in their order, why each waits, and changes of them."""

from collections.abc import Callable
from functools import partial

import streamlit as st

from dashboard import state
from dashboard.components import heading, plain
from dashboard.data import queue
from dashboard.data.runs import read_only
from harness import words
from harness.errors import StepscopeError
from harness.queue.listing import QueueLine, QueueView
from harness.records.queue import QueueState

_REFRESH_S = 2.0
# More are listed by the shell.
_MOST_LINES = 20
_LONGEST_NAME = 60
_BADGES = {
    QueueState.WAITING: ("blue", ":material/hourglass_top:"),
    QueueState.PAUSED: ("orange", ":material/pause_circle:"),
    QueueState.BLOCKED: ("red", ":material/block:"),
}


def queue_section() -> None:
    """Draw the queue; nothing while it is empty."""
    view = _view()
    if view is not None and view.lines:
        ids = [line.entry_id for line in view.lines]
        st.fragment(_section, run_every=_REFRESH_S)(ids)


def _view() -> QueueView | None:
    """Return the queue; None after drawing why it cannot be read."""
    try:
        return queue.view()
    except StepscopeError as error:
        st.warning(plain(str(error)), icon=":material/database_off:")
        return None


def _section(entry_ids: list[int]) -> None:
    """Draw the entries. When one has started, or another was added, the page is drawn again with its runs."""
    view = _view()
    if view is None:
        return
    if [line.entry_id for line in view.lines] != entry_ids:
        st.rerun()
    has_controls = read_only() is None
    with st.container(border=True, key="queue", gap="xsmall"):
        _head(view, has_controls=has_controls)
        for line in view.lines[:_MOST_LINES]:
            _line(line, has_controls=has_controls)
        more = len(view.lines) - _MOST_LINES
        if more > 0:
            st.caption(f"{words.count(more)} more: `stepscope queue list`")


def _head(view: QueueView, *, has_controls: bool) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        heading(
            "Queue",
            help="Runs that start when a device has no run and their predicted peak is free, in this order.",
        )
        if view.is_paused:
            st.badge("paused: nothing starts", icon=":material/pause_circle:", color="orange")
        elif view.needs_worker:
            st.badge("no worker", icon=":material/warning:", color="orange", help="`stepscope queue run`")
        st.space("stretch")
        if not has_controls:
            return
        if view.is_paused:
            _act("Resume", "queue_resume", queue.resume, icon=":material/play_arrow:")
        else:
            _act("Pause", "queue_pause", queue.pause, icon=":material/pause:")


def _line(line: QueueLine, *, has_controls: bool) -> None:
    color, icon = _BADGES[line.state]
    with st.container(
        horizontal=True, vertical_alignment="center", gap="small", key=f"queued_{line.entry_id}"
    ):
        name = _title(line)
        subject = f" · {line.subject}" if line.name and line.subject else ""
        st.markdown(f"{line.position}. **{plain(name)}**{plain(subject)}", width="content")
        badge = f"{line.state.value}, forced" if line.is_forced else line.state.value
        st.badge(badge, icon=icon, color=color, width="content")  # type: ignore[arg-type]  # a Literal
        st.caption(plain(line.reason), width="stretch")
        if has_controls:
            with st.container(horizontal=True, width="content", gap="small"):
                _controls(line)


def _title(line: QueueLine) -> str:
    return words.clip(line.name or line.subject or words.NOT_AVAILABLE, _LONGEST_NAME)


def _controls(line: QueueLine) -> None:
    entry_id, title = line.entry_id, _title(line)
    # The memory of a script is not predicted: nothing to force.
    if line.state is QueueState.BLOCKED and not line.is_script:
        _act(
            "Force",
            f"queue_force_{entry_id}",
            partial(queue.force, entry_id),
            help="Start it on the next free device although it is predicted not to fit.",
        )
    elif line.position > 1:
        move = partial(queue.move, entry_id, line.position - 1)
        _icon(f"Move {title} up", f"queue_up_{entry_id}", move, "arrow_upward", "Move up")
    if line.state is QueueState.WAITING:
        act = partial(queue.pause, entry_id)
        _icon(f"Pause {title}", f"queue_pause_{entry_id}", act, "pause", "Pause this entry")
    else:
        act = partial(queue.resume, entry_id)
        again = "Resume this entry" if line.state is QueueState.PAUSED else "Try this entry again"
        _icon(f"{again}: {title}", f"queue_resume_{entry_id}", act, "play_arrow", again)
    act = partial(queue.remove, entry_id)
    _icon(f"Remove {title}", f"queue_remove_{entry_id}", act, "delete", "Remove from the queue")


def _icon(name: str, key: str, act: Callable[[], None], icon: str, help: str) -> None:
    """Draw a button that shows an icon alone; `name` is for screen readers, see stepscope.css."""
    _act(plain(name), key, act, icon=f":material/{icon}:", help=help)


def _act(
    label: str, key: str, act: Callable[[], None], *, icon: str | None = None, help: str | None = None
) -> None:
    """Draw a button that changes the queue; a refusal is shown at the top of the page."""
    if st.button(label, key=key, icon=icon, help=help, type="tertiary"):
        try:
            act()
        except StepscopeError as error:
            state.set_problem(str(error))
        st.rerun()
