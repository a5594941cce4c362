"""The Live page: figures of one run, updated every second, and the controls that change it while it runs."""

import json
from datetime import datetime

import streamlit as st

from dashboard import canvas, drawing, state
from dashboard.components import (
    banner,
    device_words,
    last_lines,
    plain,
    show_problem,
)
from dashboard.controls import control_bar, view_bar
from dashboard.data import changes as change_data
from dashboard.data import runs as run_data
from dashboard.data.figures import Token, controls_stamp, figures, peek
from dashboard.data.runs import Look
from dashboard.views import header
from dashboard.views.alerts import alert_line
from dashboard.views.changes import change_list, request_pill
from harness import words
from harness.errors import LogError
from harness.records import RunState
from harness.store.folder import RunFolder

_TICK_S = 1.0
_HURRY_S = 0.3
_CHANGES_S = 2.0
_TAIL_LINES = 20
_LONGEST_BADGE = 80


def page() -> None:
    """Draw the page."""
    show_problem()
    state.renew_start_token()
    folder = header.run_or_welcome()
    if folder is None:
        return
    drawn_for = controls_stamp(peek(folder))
    seen = run_data.look(folder)
    _header(seen)
    banner(seen.status)
    control_bar(seen)
    goes_on = not seen.status.state.is_over
    every_s = (_HURRY_S if state.is_hurrying() else _TICK_S) if goes_on else None
    st.fragment(_tick, run_every=every_s)(seen, drawn_for, every_s)
    st.fragment(
        _changes, run_every=_CHANGES_S if goes_on and len(seen.history) + len(seen.commands) > 1 else None
    )(folder)
    _details(seen)


def _header(seen: Look) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="live_header"):
        header.run_picker(seen)
        header.run_badges(seen)
        request_pill(change_data.changes(seen, 1))
        st.space("stretch")
        if seen.device is not None:
            st.badge(plain(device_words(seen.device)), color="gray", help=plain(seen.device.name))
        if seen.run is not None:
            st.badge(plain(_versions(seen)), color="gray")


def _versions(seen: Look) -> str:
    versions = json.loads(seen.run.versions) if seen.run is not None else {}
    parts = [f"torch {versions['torch']}"] if versions.get("torch") else []
    if seen.settings is not None:
        parts.append(f"{seen.settings.model} {seen.settings.preset}")
    return words.clip(" · ".join(parts), _LONGEST_BADGE) or "no versions"


def _tick(seen: Look, drawn_for: tuple[object, ...], every_s: float | None) -> None:
    """Draw new data of the run; rerun the page when its controls are out of date."""
    token = peek(seen.folder)
    if controls_stamp(token) != drawn_for or (every_s == _HURRY_S and not state.is_hurrying()):
        st.rerun()
    if seen.problem is not None:
        st.error(plain(seen.problem), icon=":material/database_off:")
        return
    if seen.run is None:
        _waiting(seen)
        return
    try:
        tick = _draw(seen, token)
    except LogError as error:
        st.error(plain(str(error)), icon=":material/database_off:")
        return
    if tick is None:
        _waiting(seen)
        return
    alert_line(tick.alerts, seen.folder.run_id)
    canvas.live_cards(tick.cards, key=state.Key.CARDS)
    view_bar()
    canvas.live_plotly(tick.figure, key=state.Key.CHART)


def _draw(seen: Look, token: Token) -> state.Tick | None:
    """Return the tick to draw: the last one if the log has nothing new, None before the first step.

    Raises LogError.
    """
    window, phases = state.window(), state.shows_phases()
    view = state.chart_view(drawing.revision(seen, window, phases))
    frozen = state.is_frozen()
    now = (token.log, view, window, phases, frozen)
    last = state.last_tick()
    if last is not None and last.run == seen.folder.run_id and last.token == now:
        return last
    before = last.read if last is not None and last.run == seen.folder.run_id else None
    read = figures(seen.folder, seen.device, window.steps, view, phases, before)
    if read.last is None:
        return None
    drawn = drawing.draw(seen, read, window, phases, datetime.now())
    holds = frozen and last is not None and last.run == seen.folder.run_id and last.token[1:] == now[1:]
    packed = last.figure if holds and last is not None else canvas.pack_figure(drawn.chart)
    tick = state.Tick(seen.folder.run_id, now, read, packed, drawn.cards, drawn.alerts)
    state.keep_tick(tick)
    return tick


def _waiting(seen: Look) -> None:
    """Explain why there is no step yet."""
    current = seen.status.state
    if current is RunState.LAUNCHING:
        st.info(
            "Waiting for the first step: the training process is starting and torch is loading. "
            "This takes a few seconds.",
            icon=":material/hourglass_top:",
        )
    elif current.is_over:
        st.info("The run ended before its first step.", icon=":material/info:")
    else:
        st.info(f"Waiting for the first step. {plain(seen.status.message)}", icon=":material/hourglass_top:")
    lines = seen.folder.output_tail(_TAIL_LINES)
    if lines:
        st.caption("Last lines of the run's output.")
        last_lines(lines)


def _changes(folder: RunFolder) -> None:
    change_list(change_data.changes(run_data.look(folder), 8))


def _details(seen: Look) -> None:
    with st.expander("Run details", icon=":material/info:", key="details"):
        st.text(seen.status.message)
        st.caption("Run folder. Copy it to another machine to open the run there.")
        st.code(words.printable(str(seen.folder.path)), language=None)
        lines = seen.folder.output_tail(_TAIL_LINES)
        if lines:
            st.caption("Last lines of the run's output.")
            last_lines(lines)
        if seen.settings is not None:
            st.caption("Settings in effect.")
            st.json(seen.settings.model_dump_json(), expanded=False)
