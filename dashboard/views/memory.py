"""The Memory page: where a run's memory is, whether it leaks, and why it ran out."""

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
    """What was found beside the steps; None where the log cannot be read, which `seen` then says."""
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
        f"There is nothing to see of this run's memory yet. {plain(seen.status.message)}",
        icon=":material/hourglass_top:",
    )
    if not seen.status.state.is_over:
        st.fragment(_await_log, run_every=_TICK_S)(seen.folder.run_id)


def _await_log(run: str) -> None:
    if run_data.look(run_data.find(run)).run is not None:
        st.rerun()


def _tick(seen: Look, found: Findings, drawn_for: tuple[object, ...], every_s: float | None) -> None:
    """One look at the run: draws what is new, and the whole page when its findings are others."""
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
            "Over the steps",
            "Above: what tensors hold at the end of each step, their peak within it, and what the allocator "
            "holds, against the limit. Middle: what it holds and no tensor uses. Below: how often it found "
            "no room and tried again. Drag to zoom, double-click for the whole.",
        )
        if drawing.has_steps:
            canvas.live_plotly(tick.figure, key=state.Key.MEMORY_CHART)
        else:
            st.caption("n/a: no step has ended.")
    with st.container(border=True, key="memory_leaks"):
        leak_list(drawing.leaks, seen, found.injected)


def _draw(seen: Look, found: Findings, run_token: tuple[object, ...]) -> state.MemoryTick:
    """What is to be drawn: the last tick's when nothing is new. Raises LogError."""
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
    whole = "this machine's memory" if is_cpu else "the card"
    when = "is" if not seen.status.state.is_over else "was at the last look"
    _heading(
        f"Where it {when}",
        f"Everything that {whole} has, from what others hold down to what is free; the parts sum to the "
        "whole. Point at a name to read what it means.",
    )
    if waterfall is None:
        st.caption(
            "n/a: no look at the whole picture was taken. There is one every few seconds while a run "
            "goes on; logs of the first version have none."
        )
        return
    st.html(waterfall_chart.html(waterfall, whole))
    limit = run_data.memory_limit(seen)
    if limit is not None and limit[1] == "cap" and not is_cpu:
        st.caption(
            f":material/vertical_align_top: A cap lets this run hold {words.size(limit[0])} at most; the "
            "rest of the card is out of its reach."
        )
    if waterfall.disputed_bytes:
        st.caption(
            f":material/info: The readings were taken moments apart and contradict each other by "
            f"{words.size(waterfall.disputed_bytes)}: the allocator's own were believed."
        )
    if not found.census:
        st.caption(
            "Tensors are told apart by kind after the first look at the model's modules, after the warm-up."
        )
