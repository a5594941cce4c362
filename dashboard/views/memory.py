"""The Memory page: a run's memory breakdown, leaks, and out-of-memory reports."""

import streamlit as st

from dashboard import canvas, state, ticks
from dashboard.charts import waterfall as waterfall_chart
from dashboard.components import banner, device_words, heading, plain, show_problem
from dashboard.data import memory as memory_data
from dashboard.data import runs as run_data
from dashboard.data.memory import NOTHING, Findings
from dashboard.data.runs import RunView
from dashboard.view_models import memory as memory_view
from dashboard.view_models.memory import MemoryDrawing
from dashboard.views import header
from dashboard.views.empty_cache import empty_cache_list
from dashboard.views.leaks import leak_list
from dashboard.views.modules import modules
from dashboard.views.oom import reports
from dashboard.views.prediction import run_panel
from dashboard.views.snapshots import snapshots
from harness import words
from harness.analysis.memory.verdict import MemoryState, MemoryVerdict
from harness.analysis.memory.waterfall import Waterfall
from harness.errors import LogError
from harness.records.imported import ImportSource
from harness.records.run import DeviceKind

_TICK_S = 2.0
_FAST_TICK_S = 0.5
_BAD = frozenset({MemoryState.OUT, MemoryState.REFUSED, MemoryState.LEAK, MemoryState.FRAGMENTING})
# Their sentence is that of the run's end.
_SAY_THE_END = frozenset({MemoryState.OUT, MemoryState.REFUSED})
_WORRYING = frozenset({MemoryState.TIGHT, MemoryState.RECOVERED, MemoryState.WATCH})
_ICONS = {
    MemoryState.OUT: ":material/memory:",
    MemoryState.REFUSED: ":material/block:",
    MemoryState.LEAK: ":material/water_drop:",
    MemoryState.FRAGMENTING: ":material/grid_view:",
    MemoryState.TIGHT: ":material/speed:",
    MemoryState.RECOVERED: ":material/undo:",
    MemoryState.WATCH: ":material/trending_up:",
    MemoryState.FITS: ":material/check_circle:",
    MemoryState.UNKNOWN: ":material/help:",
}


def page() -> None:
    """Draw the page."""
    show_problem()
    folder = header.run_or_welcome()
    if folder is None:
        return
    _, drawn_for = memory_data.stamps(folder)
    view = run_data.read_view(folder)
    findings = _findings(view)
    _header(view, findings)
    if findings is None or view.run is None:
        _nothing(view)
        return
    if view.imported is not None and view.imported.source is ImportSource.TENSORBOARD:
        st.info("n/a: a TensorBoard log has scalars and no memory.", icon=":material/info:")
        return
    goes_on = not view.status.state.is_over
    every_s = (_FAST_TICK_S if state.is_polling_faster() else _TICK_S) if goes_on else None
    st.fragment(_tick, run_every=every_s)(view, findings, drawn_for, every_s)
    run_panel(view)
    with st.container(border=True, key="memory_modules"):
        modules(findings.census, findings.census_of)
    with st.container(border=True, key="memory_snapshots"):
        snapshots(view, findings.snapshots)
    with st.container(border=True, key="memory_emptied"):
        empty_cache_list(findings.empty_cache)


def _findings(view: RunView) -> Findings | None:
    """Return the memory records apart from the steps; None if there is no readable log."""
    if view.run is None:
        return None
    try:
        return memory_data.findings(view)
    except LogError as error:
        st.error(plain(str(error)), icon=":material/database_off:")
        return NOTHING


def _header(view: RunView, findings: Findings | None) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="memory_header"):
        header.run_picker(view)
        header.run_badges(view, () if findings is None else findings.injected)
        st.space("stretch")
        if view.device is not None:
            st.badge(plain(device_words(view.device)), color="gray", help=plain(view.device.name))
        st.page_link(
            state.page("live"),
            label="Live",
            icon=":material/monitoring:",
            query_params=state.run_query(view.folder.run_id),
        )


def _nothing(view: RunView) -> None:
    if view.problem is not None:
        st.error(plain(view.problem), icon=":material/database_off:")
        return
    st.info(
        f"No memory data of this run. {plain(view.status.message)}",
        icon=":material/hourglass_top:",
    )
    if not view.status.state.is_over:
        st.fragment(_await_log, run_every=_TICK_S)(view.folder.run_id)


def _await_log(run: str) -> None:
    if run_data.read_view(run_data.find(run)).run is not None:
        st.rerun()


def _tick(view: RunView, findings: Findings, drawn_for: tuple[object, ...], every_s: float | None) -> None:
    """Draw new data of the run; rerun the page when there are new findings."""
    token, now_for = memory_data.stamps(view.folder)
    if now_for != drawn_for or (every_s == _FAST_TICK_S and not state.is_polling_faster()):
        st.rerun()
    try:
        tick = _draw(view, findings, (view.folder.run_id, token, drawn_for))
    except LogError as error:
        st.error(plain(str(error)), icon=":material/database_off:")
        return
    drawing: MemoryDrawing = tick.drawing
    # In a container that is always there, see `dashboard.views.live`.
    with st.container():
        if view.status.state.is_over and drawing.verdict.state not in _SAY_THE_END:
            banner(view.status)
    _verdict(drawing.verdict, findings.suspect)
    reports(findings.reports, view.folder.run_id)
    canvas.live_cards(drawing.cards, key=state.Key.MEMORY_CARDS)
    with st.container(border=True, key="memory_waterfall"):
        _waterfall(drawing.waterfall, view, findings)
    with st.container(border=True, key="memory_timeline"):
        heading(
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
        leak_list(drawing.leaks, view, findings.injected)


def _draw(view: RunView, findings: Findings, run_token: tuple[object, ...]) -> ticks.MemoryTick:
    """Return the tick to draw: the last one if nothing is new. Raises LogError."""
    zoom = state.chart_zoom(memory_view.revision(view), state.Key.MEMORY_CHART)
    token = (*run_token, zoom)
    last = ticks.last_memory_tick()
    if last is not None and last.token == token:
        return last
    drawn = memory_view.draw(view, memory_data.memory_series(view.folder, zoom), findings)
    tick = ticks.MemoryTick(token, canvas.pack_figure(drawn.chart), drawn)
    ticks.store_memory_tick(tick)
    return tick


def _verdict(verdict: MemoryVerdict, suspect: str | None) -> None:
    memory_state = verdict.state
    box = st.success if memory_state is MemoryState.FITS else st.info
    if memory_state in _BAD:
        box = st.error
    elif memory_state in _WORRYING:
        box = st.warning
    name = memory_state.value
    text = verdict.sentence
    if suspect is not None and memory_state in (MemoryState.LEAK, MemoryState.WATCH):
        text += f" {suspect}"
    box(f"**{name[0].upper()}{name[1:]}.** {plain(text)}", icon=_ICONS[memory_state])


def _waterfall(waterfall: Waterfall | None, view: RunView, findings: Findings) -> None:
    is_cpu = view.device is not None and view.device.kind is DeviceKind.CPU
    whole = "host memory" if is_cpu else "GPU memory"
    heading(
        "Memory breakdown" + (" at the last sample" if view.status.state.is_over else ""),
        f"All {whole}, from other processes down to free memory; the parts add up to the total. Hover "
        "over a name for its meaning.",
    )
    if waterfall is None:
        st.caption(
            "n/a: no memory sample. One is taken every few seconds while a run is active; logs of the "
            "first version have none."
        )
        return
    st.html(waterfall_chart.html(waterfall, whole))
    limit = run_data.memory_limit(view)
    if limit is not None and limit[1] == "cap" and not is_cpu:
        st.caption(
            f":material/vertical_align_top: A memory cap limits this run to {words.size(limit[0])}; it "
            "cannot use the rest of the GPU's memory."
        )
    if waterfall.disputed_bytes:
        # On the CPU, the pages of a tensor that were never written are allocated and not resident.
        cause = "memory that was never written is not resident, or " if is_cpu else ""
        st.caption(
            f":material/info: The readings disagree by {words.size(waterfall.disputed_bytes)}: {cause}they "
            "were taken at slightly different times. The allocator's own readings are used."
        )
    if not findings.census:
        st.caption(
            "Tensors are split by kind once the model's modules have been inspected, after the warm-up."
        )
