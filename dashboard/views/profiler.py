"""The Profiler page: step time by phase, the bottleneck with its evidence, advice, and profiles."""

import streamlit as st

from dashboard import canvas, state, ticks
from dashboard.charts import phases as charts
from dashboard.charts import timing_cards
from dashboard.components import banner, device_words, heading, plain, show_problem
from dashboard.data import runs as run_data
from dashboard.data import timing as timing_data
from dashboard.data.runs import RunView
from dashboard.data.timing import RangeTiming
from dashboard.views import advice, header, overhead, profile
from dashboard.views.timing_tables import comparison, notes, phase_table, slow_table
from harness.analysis.timing.phase_change import compare
from harness.analysis.timing.verdict import Bound, Verdict
from harness.errors import LogError
from harness.records.imported import ImportSource

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
    drawn_for = timing_data.settings_stamp(folder)
    view = run_data.read_view(folder)
    _header(view)
    if view.problem is not None:
        st.error(plain(view.problem), icon=":material/database_off:")
        return
    if view.status.state.is_over:
        banner(view.status)
    chosen, against = _choices(view)
    every_s = None if view.status.state.is_over else _TICK_S
    st.fragment(_judgment, run_every=every_s)(view, drawn_for, chosen, against)
    profile.section(view)
    st.fragment(_tables, run_every=every_s)(view, chosen, against)


def _header(view: RunView) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="profiler_header"):
        header.run_picker(view)
        header.run_badges(view)
        st.space("stretch")
        if view.device is not None:
            st.badge(plain(device_words(view.device)), color="gray", help=plain(view.device.name))
        st.page_link(
            state.page("live"),
            label="Live",
            icon=":material/monitoring:",
            query_params=state.run_query(view.folder.run_id),
        )


def _choices(view: RunView) -> tuple[str, str | None]:
    """Draw the select boxes for a range of steps and, after a change of settings, for one to compare with."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="profiler_range"):
        chosen = _choice(view, "Steps", state.Key.TIMING_RANGE, timing_data.ranges(view))
        against = None
        versions = timing_data.versions(view)
        if len(versions) > 1:
            against = _choice(view, "Compare with", state.Key.TIMING_AGAINST, [_NOBODY, *versions])
    return chosen, None if against == _NOBODY else against


def _choice(view: RunView, label: str, key: str, names: list[str]) -> str:
    if state.widget_value(key) not in names:
        state.set_value_of_drawn(key, names[0])
    choice: str = st.selectbox(
        label, names, key=key, format_func=lambda name: timing_data.range_words(view, name), width=330
    )
    return choice


def _judgment(view: RunView, drawn_for: tuple[int, ...], chosen: str, against: str | None) -> None:
    """Draw the bottleneck, the advice and the figures from new data; rerun the page when the ranges to choose
    from have changed."""
    is_other = run_data.supervisor().status(view.folder).state != view.status.state
    if is_other or timing_data.settings_stamp(view.folder) != drawn_for:
        st.rerun()
    if view.run is None:
        _waiting(view)
        return
    tick = ticks.last_timing()
    token = (view.folder.run_id, timing_data.stamp(view.folder), chosen, against)
    if tick is None or tick.token != token:
        try:
            tick = _read(view, chosen, against, token)
        except LogError as error:
            st.error(plain(str(error)), icon=":material/database_off:")
            return
    if tick is None:
        _waiting(view)
        return
    advice_tick = advice.tick(view, tick.token[1])
    _verdict(tick.timing.verdict, has_advice=bool(advice_tick.result.suggestions))
    advice.panel(advice_tick)
    _cards(tick.timing)
    notes(tick.timing.run)


def _tables(view: RunView, chosen: str, against: str | None) -> None:
    """Draw the charts and tables of the last data read by `_judgment`. A fragment of its own, so that the
    section between the two is not redrawn with every tick."""
    tick = ticks.last_timing()
    if tick is not None and (tick.token[0], *tick.token[2:]) == (view.folder.run_id, chosen, against):
        _charts(tick)
        overhead.line(view)


def _read(
    view: RunView, chosen: str, against: str | None, token: tuple[object, ...]
) -> ticks.TimingTick | None:
    """Read and draw new data. Raises LogError."""
    timing = timing_data.read(view, chosen)
    if timing is None:
        return None
    baseline = None if against is None else timing_data.read(view, against)
    revision = f"{view.folder.run_id}/{chosen}/{against}"
    times = timing.run.timing
    bars = _bars(timing, baseline, chosen, against)
    spread = b""
    if times.cpu is not None:
        figure = charts.distribution(timing.run.steps_ns, times.cpu.step, revision)
        spread = canvas.pack_figure(figure)
    stacked = canvas.pack_figure(charts.stacked(bars, revision)) if bars else b""
    tick = ticks.TimingTick(token, timing, baseline, stacked, spread)
    ticks.store_timing(tick)
    return tick


def _bars(
    timing: RangeTiming, baseline: RangeTiming | None, chosen: str, against: str | None
) -> list[charts.ClockBar]:
    """Return a bar for each clock; in a comparison for each side, on the device clock if both have one."""
    times = timing.run.timing
    cpu_name = "issued by CPU" if timing.run.is_asynchronous else "CPU clock"
    if baseline is None or against is None:
        pairs = [(cpu_name, times.cpu), ("device clock", times.device)]
    else:
        both = times.device is not None and baseline.run.timing.device is not None
        sides = [(against, baseline.run.timing), (chosen, times)]
        pairs = [(name, side.device if both else side.cpu) for name, side in sides]
    return [charts.ClockBar(name, times) for name, times in pairs if times is not None]


def _cards(timing: RangeTiming) -> None:
    arithmetic = timing.run.arithmetic
    source = timing_cards.TimingCardData(
        timing.run.timing,
        timing.run.is_asynchronous,
        None if arithmetic.peak is None else arithmetic.peak.flops_per_s,
        arithmetic.math_type,
        "" if arithmetic.peak is None else arithmetic.peak.source,
        arithmetic.reason,
        tuple(arithmetic.uncounted),
    )
    with st.container(key="profiler_figures"):
        canvas.live_cards(timing_cards.cards(source), key=state.Key.TIMING_CARDS)


def _charts(tick: ticks.TimingTick) -> None:
    timing: RangeTiming = tick.timing
    baseline: RangeTiming | None = tick.against
    if tick.phases:
        with st.container(border=True, key="profiler_phases"):
            heading("Phases", help=_PHASES_HELP)
            canvas.live_plotly(tick.phases, key=state.Key.TIMING_PHASES)
            compared = None if baseline is None else compare(baseline.run.timing, timing.run.timing)
            if compared is not None:
                comparison(compared, tick.token[3], tick.token[2])
            phase_table(timing.run)
    if tick.spread:
        with st.container(border=True, key="profiler_spread"):
            heading("Step times", help="Distribution of step times on the wall clock.")
            canvas.live_plotly(tick.spread, key=state.Key.TIMING_SPREAD)
            slow_table(timing.run)


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


def _waiting(view: RunView) -> None:
    if view.imported is not None and view.imported.source is ImportSource.TENSORBOARD:
        st.info("n/a: a TensorBoard log has scalars and no step times.", icon=":material/info:")
    elif view.status.state.is_over:
        st.info(f"{view.why_no_step} There are no step times.", icon=":material/info:")
    else:
        message = f"Waiting for the first step. {plain(view.status.message)}"
        st.info(message, icon=":material/hourglass_top:")
