"""The Memory page: a run's memory breakdown, leaks, and out-of-memory reports."""

import streamlit as st

from dashboard import canvas, memory_drawing, state
from dashboard.charts import waterfall as waterfall_chart
from dashboard.components import device_words, plain, show_problem
from dashboard.data import memory as memory_data
from dashboard.data import runs as run_data
from dashboard.data.memory import NOTHING, Findings
from dashboard.data.runs import Look
from dashboard.memory_drawing import Drawing
from dashboard.views import header
from dashboard.views.emptied import emptied_list
from dashboard.views.leaks import leak_list
from dashboard.views.modules import modules
from dashboard.views.oom import reports
from dashboard.views.prediction import run_panel
from dashboard.views.snapshots import snapshots
from harness import words
from harness.analysis.memory.verdict import MemoryVerdict, Standing
from harness.analysis.memory.waterfall import Waterfall
from harness.errors import LogError
from harness.records import DeviceKind

_TICK_S = 2.0
_HURRY_S = 0.5
_BAD = frozenset({Standing.OUT, Standing.LEAK, Standing.FRAGMENTING})
_WORRYING = frozenset({Standing.TIGHT, Standing.RECOVERED, Standing.WATCH})
_ICONS = {
    Standing.OUT: ":material/memory:",
    Standing.LEAK: ":material/water_drop:",
    Standing.FRAGMENTING: ":material/grid_view:",
    Standing.TIGHT: ":material/speed:",
    Standing.RECOVERED: ":material/undo:",
    Standing.WATCH: ":material/trending_up:",
    Standing.FITS: ":material/check_circle:",
    Standing.UNKNOWN: ":material/help:",
}


def page() -> None:
    """Draw the page."""
    show_problem()
    folder = header.run_or_welcome()
    if folder is None:
        return
    _, drawn_for = memory_data.stamps(folder)
    seen = run_data.look(folder)
    found = _findings(seen)
    _header(seen, found)
    if found is None or seen.run is None:
        _nothing(seen)
        return
    goes_on = not seen.status.state.is_over
    every_s = (_HURRY_S if state.is_hurrying() else _TICK_S) if goes_on else None
    st.fragment(_tick, run_every=every_s)(seen, found, drawn_for, every_s)
    run_panel(seen)
    with st.container(border=True, key="memory_modules"):
        modules(found.census, found.census_of)
    with st.container(border=True, key="memory_snapshots"):
        snapshots(seen, found.snapshots)
    with st.container(border=True, key="memory_emptied"):
        emptied_list(found.emptied)


def _findings(seen: Look) -> Findings | None:
    """Return the memory records apart from the steps; None if there is no readable log."""
    if seen.run is None:
        return None
    try:
        return memory_data.findings(seen)
    except LogError as error:
        st.error(plain(str(error)), icon=":material/database_off:")
        return NOTHING


def _header(seen: Look, found: Findings | None) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="memory_header"):
        header.run_picker(seen)
        header.run_badges(seen, () if found is None else found.injected)
        st.space("stretch")
        if seen.device is not None:
            st.badge(plain(device_words(seen.device)), color="gray", help=plain(seen.device.name))
        st.page_link(
            state.page("live"),
            label="Live",
            icon=":material/monitoring:",
            query_params=state.run_query(seen.folder.run_id),
        )


def _nothing(seen: Look) -> None:
    if seen.problem is not None:
        st.error(plain(seen.problem), icon=":material/database_off:")
        return
    st.info(
        f"No memory data of this run yet. {plain(seen.status.message)}",
        icon=":material/hourglass_top:",
    )
    if not seen.status.state.is_over:
        st.fragment(_await_log, run_every=_TICK_S)(seen.folder.run_id)


def _await_log(run: str) -> None:
    if run_data.look(run_data.find(run)).run is not None:
        st.rerun()


def _tick(seen: Look, found: Findings, drawn_for: tuple[object, ...], every_s: float | None) -> None:
    """Draw new data of the run; rerun the page when there are new findings."""
    token, now_for = memory_data.stamps(seen.folder)
    if now_for != drawn_for or (every_s == _HURRY_S and not state.is_hurrying()):
        st.rerun()
    try:
        tick = _draw(seen, found, (seen.folder.run_id, token, drawn_for))
    except LogError as error:
        st.error(plain(str(error)), icon=":material/database_off:")
        return
    drawing: Drawing = tick.drawing
    _verdict(drawing.verdict, found.suspect)
    reports(found.reports, seen.folder.run_id)
    canvas.live_cards(drawing.cards, key=state.Key.MEMORY_CARDS)
    with st.container(border=True, key="memory_waterfall"):
        _waterfall(drawing.waterfall, seen, found)
    with st.container(border=True, key="memory_timeline"):
        _heading(
            "Memory by step",
            "Top: memory of live tensors at the end of each step, the peak within it, and reserved memory, "
            "against the limit. Middle: reserved memory that no tensor uses. Bottom: how often an allocation "
            "failed at first and was retried. Drag to zoom, double-click to reset.",
        )
        if drawing.has_steps:
            canvas.live_plotly(tick.figure, key=state.Key.MEMORY_CHART)
        else:
            st.caption("n/a: no step has ended.")
    with st.container(border=True, key="memory_leaks"):
        leak_list(drawing.leaks, seen, found.injected)


def _draw(seen: Look, found: Findings, run_token: tuple[object, ...]) -> state.MemoryTick:
    """Return the tick to draw: the last one if nothing is new. Raises LogError."""
    view = state.chart_view(memory_drawing.revision(seen), state.Key.MEMORY_CHART)
    token = (*run_token, view)
    last = state.last_memory_tick()
    if last is not None and last.token == token:
        return last
    drawn = memory_drawing.draw(seen, memory_data.course(seen.folder, view), found)
    tick = state.MemoryTick(token, canvas.pack_figure(drawn.chart), drawn)
    state.keep_memory_tick(tick)
    return tick


def _verdict(verdict: MemoryVerdict, suspect: str | None) -> None:
    standing = verdict.standing
    box = st.success if standing is Standing.FITS else st.info
    if standing in _BAD:
        box = st.error
    elif standing in _WORRYING:
        box = st.warning
    name = standing.value
    text = verdict.sentence
    if suspect is not None and standing in (Standing.LEAK, Standing.WATCH):
        text += f" {suspect}"
    box(f"**{name[0].upper()}{name[1:]}.** {plain(text)}", icon=_ICONS[standing])


def _heading(title: str, meaning: str) -> None:
    st.markdown(f"**{title}**", help=meaning)


def _waterfall(waterfall: Waterfall | None, seen: Look, found: Findings) -> None:
    is_cpu = seen.device is not None and seen.device.kind is DeviceKind.CPU
    whole = "system memory" if is_cpu else "GPU memory"
    _heading(
        "Memory breakdown" + (" at the last sample" if seen.status.state.is_over else ""),
        f"All {whole}, from other processes down to free memory; the parts add up to the total. Hover "
        "over a name for its meaning.",
    )
    if waterfall is None:
        st.caption(
            "n/a: no memory sample yet. One is taken every few seconds while a run is active; logs of the "
            "first version have none."
        )
        return
    st.html(waterfall_chart.html(waterfall, whole))
    limit = run_data.memory_limit(seen)
    if limit is not None and limit[1] == "cap" and not is_cpu:
        st.caption(
            f":material/vertical_align_top: A memory cap limits this run to {words.size(limit[0])}; it "
            "cannot use the rest of the GPU's memory."
        )
    if waterfall.disputed_bytes:
        st.caption(
            f":material/info: The readings were taken at slightly different times and disagree by "
            f"{words.size(waterfall.disputed_bytes)}; the allocator's own readings are used."
        )
    if not found.census:
        st.caption(
            "Tensors are split by kind once the model's modules have been inspected, after the warm-up."
        )
