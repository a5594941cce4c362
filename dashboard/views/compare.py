"""The Compare page: two to eight runs by their curves, step times, phases, kinds of work and settings."""

from collections.abc import Mapping, Sequence

import streamlit as st

from dashboard import canvas, state
from dashboard.charts import compare
from dashboard.charts.compare import Compared
from dashboard.components import heading, page_title, plain, table
from dashboard.data import compare as compare_data
from dashboard.download_links import report_link
from dashboard.view_models.runs import column_widths
from dashboard.views.compared_scalars import scalar_curves
from dashboard.views.welcome import welcome
from harness import words
from harness.analysis.compare.curves import CurveAxis
from harness.analysis.compare.facts import FIGURES
from harness.analysis.compare.pairs import RunPair, common_figures, compare_pair, settings_that_differ
from harness.errors import StepscopeError
from harness.supervisor.comparing import FINAL_STEPS
from harness.supervisor.logs import RECENT_STEPS

MOST_RUNS = 8
# Characters of a run's name that have to be visible above its column.
_LONGEST_HEADING = 28
_AXES = {CurveAxis.STEP: "step", CurveAxis.TIME: "time", CurveAxis.SAMPLES: "samples"}


def page() -> None:
    """Draw the page."""
    try:
        names = compare_data.choices()
    except StepscopeError as error:
        st.error(plain(str(error)), icon=":material/error:")
        return
    if not names:
        welcome()
        return
    page_title("Compare runs")
    default, unknown = state.begin_comparison(names, MOST_RUNS)
    for run in unknown:
        st.warning(plain(f"There is no run {run!r} here; it may have been deleted."))
    chosen = st.multiselect(
        "Runs; the first is the baseline",
        list(names),
        default,
        key=state.Key.COMPARED,
        format_func=lambda run_id: words.clip(words.printable(names[run_id]), 60),
        max_selections=MOST_RUNS,
    )
    state.show_comparison(chosen)
    runs = compare.distinct(_read(chosen))
    if len(chosen) < 2:
        st.caption("Choose two or more runs. The address of this page names them, so it can be linked to.")
    elif len(runs) < 2 or not common_figures([run.facts for run in runs]):
        st.info("These runs have no figure in common: at most one of them has steady-state steps.")
        scalar_curves(runs, CurveAxis.STEP)
        _settings(runs)
    else:
        _comparison(compare_data.add_equal_losses(runs))


def _read(chosen: Sequence[str]) -> list[Compared]:
    runs = []
    for run_id in chosen:
        try:
            runs.append(compare_data.read(run_id))
        except StepscopeError as error:
            st.warning(plain(str(error)), icon=":material/database_off:")
    return runs


def _comparison(runs: Sequence[Compared]) -> None:
    facts = [run.facts for run in runs]
    pairs = [compare_pair(facts[0], other) for other in facts[1:]]
    with st.container(border=True, key="verdicts"):
        for pair in pairs:
            st.markdown(plain(pair.verdict))
    report_link([run.facts.run_id for run in runs])
    axis = st.segmented_control(
        "Align by",
        list(_AXES),
        format_func=_AXES.__getitem__,
        default=CurveAxis.STEP,
        key=state.Key.COMPARE_AXIS,
    )
    canvas.live_plotly(compare.figure(runs, axis or CurveAxis.STEP), key=state.Key.COMPARE_CHART)
    scalar_curves(runs, axis or CurveAxis.STEP)
    _figures(runs, pairs)
    with st.container(key="compare_bars"):
        _bars(runs)
    _settings(runs)


def _bars(runs: Sequence[Compared]) -> None:
    spread = compare.distribution(runs)
    if spread is not None:
        heading("Step times")
        canvas.live_plotly(spread, key=state.Key.COMPARE_SPREAD)
    phases = compare.phase_bars(runs)
    if phases is not None:
        heading("Phases")
        canvas.live_plotly(phases, key=state.Key.COMPARE_PHASES)
    memory = compare.memory_bars(runs)
    if memory is not None:
        heading("Memory breakdown")
        canvas.live_plotly(memory, key=state.Key.COMPARE_MEMORY)
    kinds = compare.kind_bars(runs)
    if kinds is None:
        return
    heading("Kinds of work")
    canvas.live_plotly(kinds, key=state.Key.COMPARE_KINDS)
    without = [run.name for run in runs if run.facts.profile is None]
    if without:
        st.caption(plain(f"n/a for {', '.join(without)}: no profile was taken."))


def _figures(runs: Sequence[Compared], pairs: Sequence[RunPair]) -> None:
    rows = [{"Figure": "state", **{run.name: run.facts.state for run in runs}}]
    for figure in FIGURES.values():
        values = [figure.read(run.facts) for run in runs]
        if all(value is None for value in values):
            continue
        row = {"Figure": figure.label, runs[0].name: figure.text(values[0])}
        for run, pair, value in zip(runs[1:], pairs, values[1:], strict=True):
            change = pair.figure(figure.name)
            words_of_change = [words.relative(change.ratio - 1)] if change.ratio is not None else []
            if change.low is not None and change.high is not None:
                limits = f"{words.relative(change.low - 1)} to {words.relative(change.high - 1)}"
                words_of_change.append(limits)
            note = f" ({'; '.join(words_of_change)})" if words_of_change else ""
            row[run.name] = f"{figure.text(value)}{note}"
        rows.append(row)
    heading("Figures")
    _table(rows, "Figures of each run, with the change against the first and its 95 % interval.")
    st.caption(
        "Step times and rates are of all steady-state steps; the list of runs has those of the last "
        f"{RECENT_STEPS}. The final loss is the mean of the last {FINAL_STEPS} steps."
    )
    for run in runs:
        if run.facts.change_note is not None:
            st.caption(plain(run.facts.change_note))


def _settings(runs: Sequence[Compared]) -> None:
    if len(runs) < 2:
        return
    rows = settings_that_differ([run.facts for run in runs])
    heading("Settings that differ")
    if not rows:
        st.caption("None: the recorded settings of these runs are the same.")
        return
    names = [run.name for run in runs]
    _table(
        [{"Setting": row.label, **dict(zip(names, row.values, strict=True))} for row in rows],
        "Settings with different values among these runs.",
    )


def _table(rows: Sequence[Mapping[str, str]], alt: str) -> None:
    widths = column_widths(rows, _LONGEST_HEADING)
    columns = {name: st.column_config.TextColumn(width=px) for name, px in widths.items()}
    table(rows, alt=alt, columns=columns)
