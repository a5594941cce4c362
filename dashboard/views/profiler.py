"""The Profiler page: step time by phase, the bottleneck with its evidence, advice, and profiles."""

import streamlit as st

from dashboard import canvas, state
from dashboard.charts import phases as charts
from dashboard.charts import timing_cards
from dashboard.components import device_words, plain, show_problem
from dashboard.data import runs as run_data
from dashboard.data import timing as timing_data
from dashboard.data.runs import Look
from dashboard.data.timing import SeenTiming
from dashboard.views import advice, header, own_cost, profile
from dashboard.views.timing_tables import comparison, notes, phase_table, slow_table
from harness.analysis.timing.phase_change import compare
from harness.analysis.timing.verdict import Bound, Verdict
from harness.errors import LogError

_TICK_S = 2.0
_NOBODY = "nothing"
_ICONS = {
    Bound.TOO_FEW: ":material/hourglass_top:",
    Bound.INPUT: ":material/input:",
    Bound.TRANSFER: ":material/swap_horiz:",
    Bound.LAUNCH: ":material/rocket_launch:",
    Bound.OPTIMIZER: ":material/tune:",
    Bound.OUTSIDE: ":material/more_time:",
    Bound.COMPUTE: ":material/memory:",
    Bound.MIXED: ":material/balance:",
}
_WORRYING = frozenset({Bound.INPUT, Bound.TRANSFER, Bound.LAUNCH, Bound.OUTSIDE})


def page() -> None:
    """Draw the page."""
    show_problem()
    folder = header.run_or_welcome()
    if folder is None:
        return
    drawn_for = timing_data.seldom(folder)
    seen = run_data.look(folder)
    _header(seen)
    if seen.problem is not None:
        st.error(plain(seen.problem), icon=":material/database_off:")
        return
    chosen, against = _choices(seen)
    every_s = None if seen.status.state.is_over else _TICK_S
    st.fragment(_judgement, run_every=every_s)(seen, drawn_for, chosen, against)
    profile.section(seen)
    st.fragment(_tables, run_every=every_s)(seen, chosen, against)


def _header(seen: Look) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="profiler_header"):
        header.run_picker(seen)
        header.run_badges(seen)
        st.space("stretch")
        if seen.device is not None:
            st.badge(plain(device_words(seen.device)), color="gray", help=plain(seen.device.name))
        st.page_link(
            state.page("live"),
            label="Live",
            icon=":material/monitoring:",
            query_params=state.run_query(seen.folder.run_id),
        )


def _choices(seen: Look) -> tuple[str, str | None]:
    """Draw the select boxes for a range of steps and, after a change of settings, for one to compare with."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="profiler_range"):
        chosen = _choice(seen, "Steps", state.Key.TIMING_RANGE, timing_data.ranges(seen))
        against = None
        if len(seen.history) > 1:
            names = [_NOBODY, *timing_data.versions(seen)]
            against = _choice(seen, "Compare with", state.Key.TIMING_AGAINST, names)
    return chosen, None if against == _NOBODY else against


def _choice(seen: Look, label: str, key: str, names: list[str]) -> str:
    if state.widget_value(key) not in names:
        state.put(key, names[0])
    found: str = st.selectbox(
        label, names, key=key, format_func=lambda name: timing_data.range_words(seen, name), width=330
    )
    return found


def _judgement(seen: Look, drawn_for: tuple[int, ...], chosen: str, against: str | None) -> None:
    """Draw the bottleneck, the advice and the figures from new data; rerun the page when the ranges to choose
    from have changed."""
    is_other = run_data.supervisor().status(seen.folder).state != seen.status.state
    if is_other or timing_data.seldom(seen.folder) != drawn_for:
        st.rerun()
    if seen.run is None:
        _waiting(seen)
        return
    tick = state.last_timing()
    token = (seen.folder.run_id, timing_data.stamp(seen.folder), chosen, against)
    if tick is None or tick.token != token:
        try:
            tick = _read(seen, chosen, against, token)
        except LogError as error:
            st.error(plain(str(error)), icon=":material/database_off:")
            return
    if tick is None:
        _waiting(seen)
        return
    advised = advice.tick(seen, tick.token[1])
    _verdict(tick.seen.verdict, has_advice=bool(advised.advised.suggestions))
    advice.panel(advised)
    _cards(tick.seen)
    notes(tick.seen.run)


def _tables(seen: Look, chosen: str, against: str | None) -> None:
    """Draw the charts and tables of the last data read by `_judgement`. A fragment of its own, so that the
    section between the two is not redrawn with every tick."""
    tick = state.last_timing()
    if tick is not None and (tick.token[0], *tick.token[2:]) == (seen.folder.run_id, chosen, against):
        _charts(tick)
        own_cost.line(seen)


def _read(seen: Look, chosen: str, against: str | None, token: tuple[object, ...]) -> state.TimingTick | None:
    """Read and draw new data. Raises LogError."""
    found = timing_data.read(seen, chosen)
    if found is None:
        return None
    other = None if against is None else timing_data.read(seen, against)
    revision = f"{seen.folder.run_id}/{chosen}/{against}"
    timing = found.run.timing
    bars = _bars(found, other, chosen, against)
    spread = b""
    if timing.cpu is not None:
        figure = charts.distribution(found.run.steps_ns, timing.cpu.step, revision)
        spread = canvas.pack_figure(figure)
    stacked = canvas.pack_figure(charts.stacked(bars, revision)) if bars else b""
    tick = state.TimingTick(token, found, other, stacked, spread)
    state.keep_timing(tick)
    return tick


def _bars(found: SeenTiming, other: SeenTiming | None, chosen: str, against: str | None) -> list[charts.Bar]:
    """Return a bar for each clock; in a comparison for each side, on the device clock if both have one."""
    timing = found.run.timing
    cpu_name = "issued by CPU" if found.run.is_asynchronous else "CPU clock"
    if other is None or against is None:
        pairs = [(cpu_name, timing.cpu), ("device clock", timing.device)]
    else:
        both = timing.device is not None and other.run.timing.device is not None
        sides = [(against, other.run.timing), (chosen, timing)]
        pairs = [(name, side.device if both else side.cpu) for name, side in sides]
    return [charts.Bar(name, times) for name, times in pairs if times is not None]


def _cards(found: SeenTiming) -> None:
    arithmetic = found.run.arithmetic
    source = timing_cards.Source(
        found.run.timing,
        found.run.is_asynchronous,
        None if arithmetic.peak is None else arithmetic.peak.flops_per_s,
        arithmetic.math_type,
        "" if arithmetic.peak is None else arithmetic.peak.source,
        arithmetic.reason,
        tuple(arithmetic.uncounted),
    )
    with st.container(key="profiler_figures"):
        canvas.live_cards(timing_cards.cards(source), key=state.Key.TIMING_CARDS)


def _charts(tick: state.TimingTick) -> None:
    found: SeenTiming = tick.seen
    other: SeenTiming | None = tick.against
    if tick.phases:
        with st.container(border=True, key="profiler_phases"):
            st.markdown("**Phases**", help=_PHASES_HELP)
            canvas.live_plotly(tick.phases, key=state.Key.TIMING_PHASES)
            compared = None if other is None else compare(other.run.timing, found.run.timing)
            if compared is not None:
                comparison(compared, tick.token[3], tick.token[2])
            phase_table(found.run)
    if tick.spread:
        with st.container(border=True, key="profiler_spread"):
            st.markdown("**Step times**", help="Distribution of step times on the wall clock.")
            canvas.live_plotly(tick.spread, key=state.Key.TIMING_SPREAD)
            slow_table(found.run)


_PHASES_HELP = (
    "Mean time per step, by phase. On a GPU the CPU only issues the work and waits when the queue is full; "
    "the device's own clock measures how long the work takes. Time outside of all phases is the rest; the "
    "gap is a lower bound of the device's idle time between two steps."
)


def _verdict(verdict: Verdict, has_advice: bool) -> None:
    """Draw the bottleneck with its evidence, and general next steps where there is no advice."""
    box = st.warning if verdict.bound in _WORRYING else st.info
    head, colon, rest = verdict.sentence.partition(": ")
    sentence = f"**{plain(head)}.** {plain(rest[:1].upper() + rest[1:])}" if colon else f"**{plain(head)}**"
    parts = [sentence]
    if verdict.why:
        parts.append(plain(" ".join(verdict.why)))
    if verdict.next and not has_advice:
        parts.append(f"**Next:** {plain(' '.join(verdict.next))}")
    box("\n\n".join(parts), icon=_ICONS[verdict.bound])


def _waiting(seen: Look) -> None:
    if seen.status.state.is_over:
        st.info("The run ended before its first step: there are no step times.", icon=":material/info:")
    else:
        message = f"Waiting for the first step. {plain(seen.status.message)}"
        st.info(message, icon=":material/hourglass_top:")
