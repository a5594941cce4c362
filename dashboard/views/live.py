"""The Live page: figures of one run, updated every second, and the controls that change it while it runs."""

from datetime import datetime

import streamlit as st

from dashboard import canvas, state, ticks
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
from dashboard.data.figures import Token, controls_stamp, figures, read_token
from dashboard.data.runs import RunView
from dashboard.download_links import report_link
from dashboard.view_models import live as live_view
from dashboard.views import header, measuring, ranks
from dashboard.views.alerts import alert_line
from dashboard.views.changes import change_list, request_pill
from dashboard.views.scalars import scalar_chart
from dashboard.views.script import script_facts
from harness import words
from harness.errors import LogError
from harness.records.run import RunState
from harness.store.folder import RunFolder
from harness.supervisor.origin import NO_OUTPUT
from harness.supervisor.stored_json import read_versions

_TICK_S = 1.0
_FAST_TICK_S = 0.3
_CHANGES_S = 2.0
_TAIL_LINES = 20
_LONGEST_BADGE = 80


def page() -> None:
    """Draw the page."""
    with st.container():
        show_problem()
    state.renew_start_token()
    folder = header.run_or_welcome()
    if folder is None:
        return
    drawn_for = controls_stamp(read_token(folder))
    view = run_data.read_view(folder)
    _header(view)
    # In containers that are always there: with another number of elements before it, Streamlit would replace
    # the chart by a new one, and show both for a moment.
    with st.container():
        if view.status.message != view.problem:  # Drawn below in place of the charts.
            banner(view.status)
    control_bar(view)
    with st.container():
        measuring.form(view)
        measuring.progress(view)
    goes_on = not view.status.state.is_over
    every_s = (_FAST_TICK_S if state.is_polling_faster() else _TICK_S) if goes_on else None
    st.fragment(_tick, run_every=every_s)(view, drawn_for, every_s)
    with st.container():
        ranks.section(view)
    measuring.results(view)
    st.fragment(
        _changes, run_every=_CHANGES_S if goes_on and len(view.history) + len(view.commands) > 1 else None
    )(folder)
    st.fragment(_details)(view)
    report_link([folder.run_id])


def redirect() -> None:
    """Lead from the address "/live" to this page, with the run in the address."""
    run = state.run_id()
    st.switch_page(state.page("live"), query_params=None if run is None else state.run_query(run))


def _header(view: RunView) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="live_header"):
        header.run_picker(view)
        header.run_badges(view)
        request_pill(change_data.changes(view, 1))
        st.space("stretch")
        if view.device is not None:
            st.badge(plain(device_words(view.device)), color="gray", help=plain(view.device.name))
        if view.run is not None:
            st.badge(plain(_versions(view)), color="gray")


def _versions(view: RunView) -> str:
    versions = {} if view.run is None else read_versions(view.run.versions)
    parts = [f"torch {versions['torch']}"] if versions.get("torch") else []
    if view.subject is not None:
        parts.append(view.subject)
    return words.clip(" · ".join(parts), _LONGEST_BADGE) or "no versions"


def _tick(view: RunView, drawn_for: tuple[object, ...], every_s: float | None) -> None:
    """Draw new data of the run; rerun the page when its controls are out of date."""
    token = read_token(view.folder)
    if controls_stamp(token) != drawn_for or (every_s == _FAST_TICK_S and not state.is_polling_faster()):
        st.rerun()
    if view.problem is not None:
        st.error(plain(view.problem), icon=":material/database_off:")
        return
    if view.run is None:
        _waiting(view)
        return
    try:
        tick = _draw(view, token)
    except LogError as error:
        st.error(plain(str(error)), icon=":material/database_off:")
        return
    if tick is None:
        _waiting(view)
        return
    alert_line(tick.alerts, view.folder.run_id)
    canvas.live_cards(tick.cards, key=state.Key.CARDS)
    view_bar(view.folder.run_id, tick.read.scalar_names)
    canvas.live_plotly(tick.figure, key=state.Key.CHART)


def _draw(view: RunView, token: Token) -> ticks.Tick | None:
    """Return the tick to draw: the last one if the log has nothing new, None before the first step.

    Raises LogError.
    """
    window, phases = state.window(), state.shows_phases()
    zoom = state.chart_zoom(live_view.revision(view, window, phases))
    frozen = state.is_frozen()
    scalars = state.selected_scalars(view.folder.run_id)
    now = (token.log, zoom, window, phases, frozen, scalars)
    last = ticks.last_tick()
    if last is not None and last.run == view.folder.run_id and last.token == now:
        return last
    before = last.read if last is not None and last.run == view.folder.run_id else None
    read = figures(view.folder, view.device, window.steps, zoom, phases, before, scalars)
    if read.last is None:
        return None
    drawn = live_view.draw(view, read, window, phases, datetime.now())
    holds = frozen and last is not None and last.run == view.folder.run_id and last.token[1:] == now[1:]
    packed = last.figure if holds and last is not None else canvas.pack_figure(drawn.chart)
    tick = ticks.Tick(view.folder.run_id, now, read, packed, drawn.cards, drawn.alerts)
    ticks.store_tick(tick)
    return tick


def _waiting(view: RunView) -> None:
    """Explain why there is no step yet."""
    current = view.status.state
    if current is RunState.LAUNCHING and view.script is not None:
        st.info(
            "Waiting for the first step: the script has not trained yet. Its figures begin with the first "
            "call of a model in training mode.",
            icon=":material/hourglass_top:",
        )
    elif current is RunState.LAUNCHING:
        st.info(
            "Waiting for the first step: the training process is starting and torch is loading. "
            "This takes a few seconds.",
            icon=":material/hourglass_top:",
        )
    elif _draws_scalars(view):
        return
    elif current.is_over:
        st.info(view.why_no_step, icon=":material/info:")
    else:
        st.info(f"Waiting for the first step. {plain(view.status.message)}", icon=":material/hourglass_top:")
    _output(view)


def _draws_scalars(view: RunView) -> bool:
    """Draw the scalars of a run that has ended without a step; return whether it has any."""
    if not view.status.state.is_over or view.run is None:
        return False
    try:
        return scalar_chart(view)
    except LogError as error:
        st.error(plain(str(error)), icon=":material/database_off:")
        return True


def _output(view: RunView) -> None:
    """Draw the last lines of the run's output; a script prints into its own terminal."""
    lines = view.folder.output_tail(_TAIL_LINES)
    if lines:
        st.caption("Last lines of the run's output.")
        last_lines(lines)
    elif view.script is not None:
        st.caption(plain(f"{NO_OUTPUT}."))


def _changes(folder: RunFolder) -> None:
    change_list(change_data.changes(run_data.read_view(folder), 8))


def _details(view: RunView) -> None:
    """Draw the details once they are opened: the browser takes half a second to load what shows code."""
    details = st.expander("Run details", icon=":material/info:", key="details", on_change="rerun")
    if not details.open:
        return
    with details:
        st.text(view.status.message)
        st.caption("Run folder. Copy it to another machine to open the run there.")
        st.code(words.printable(str(view.folder.path)), language=None)
        if view.script is not None:
            script_facts(view.script, {} if view.run is None else read_versions(view.run.versions))
        _output(view)
        if view.settings is not None:
            st.caption("Settings in effect.")
            st.json(view.settings.to_json(), expanded=False)
