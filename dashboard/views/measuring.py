"""Measured effects on the Live page: the form of a measurement, its progress, and the results."""

from collections.abc import Mapping
from typing import Any

import streamlit as st

from dashboard import state
from dashboard.commands import end_measurement, pending_values, request_measurement
from dashboard.components import heading, plain, table
from dashboard.controls import disabled_reason, unmeasurable_reason
from dashboard.data.measuring import read_measured
from dashboard.data.runs import RunView, read_view, supervisor
from dashboard.form import alternative, setting_input, spec_of_declared
from harness import words
from harness.analysis.effect.measured import MeasuredFigure, Word
from harness.errors import StepscopeError
from harness.records.measurement import DEFAULT_PAIRS, LEAST_PAIRS, MOST_PAIRS, expected_s, judgment_pairs
from harness.settings.spec import SPECS, SettingSpec
from harness.store.folder import RunFolder
from harness.supervisor.measuring import Measurement, long_measurement

_HELP = (
    "The run switches between its settings (A) and the changed ones (B) in randomized pairs of blocks of at "
    "least 30 steps and 0.5 s, and returns to its settings. The undisturbed step is the 5th percentile of a "
    "block's steps; intervals are those of the signed-rank test over pairs. In the chart blocks of A are "
    "gray, those of B blue."
)
_COLORS = {
    Word.FASTER: "green",
    Word.LESS: "green",
    Word.SLOWER: "orange",
    Word.MORE: "orange",
    Word.NO_PRACTICAL_DIFFERENCE: "gray",
}
_TICK_S = 1.0
_RESULTS_S = 2.0


def form(view: RunView) -> None:
    """Draw the form for the setting whose button was clicked; nothing without one."""
    name = state.measured_setting()
    values = pending_values(view)
    if name is None or name not in values or unmeasurable_reason(view) is not None:
        return
    spec = _spec(view, name)
    if spec is None:
        return
    key = f"measure_value_{name}"
    with st.container(border=True, key="measure_form"):
        _inputs(view, spec, key, values)
        _expectation(view)


def _expectation(view: RunView) -> None:
    """Draw the least duration of the measurement; a warning if it is long."""
    try:
        step_ns = supervisor().summary(view.folder).step_ns
    except StepscopeError:
        return
    pairs = int(state.widget_value(state.Key.MEASURE_PAIRS) or DEFAULT_PAIRS)
    announcement = long_measurement(step_ns, pairs)
    if announcement is not None:
        st.warning(plain(announcement), icon=":material/hourglass_empty:")
    elif step_ns is not None:
        least, most = (
            words.span(expected_s(step_ns / 1e9, count)) for count in (judgment_pairs(pairs)[0], pairs)
        )
        st.caption(plain(f"Takes {least}, and up to {most} until it is conclusive."))


def _inputs(view: RunView, spec: SettingSpec, key: str, values: Mapping[str, Any]) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        with st.container(width=220):
            setting_input(spec, key, alternative(spec, values[spec.name]))
        with st.container(width=140):
            st.number_input(
                "Pairs at most",
                LEAST_PAIRS,
                MOST_PAIRS,
                DEFAULT_PAIRS,
                key=state.Key.MEASURE_PAIRS,
                help="It ends after a quarter or half of them if the result is conclusive. A pair takes "
                "1.2 s, or 70 steps if longer.",
            )
        args = (view.folder, spec.name, key)
        st.button(
            "Measure",
            key="measure",
            type="primary",
            icon=":material/science:",
            help="Measures the effect and returns to the settings in effect.",
            on_click=request_measurement,
            args=(*args, False),
        )
        st.button(
            "Try it",
            key="measure_try",
            icon=":material/experiment:",
            help="Measures the effect, and keeps the change if it is faster, also when this page is closed.",
            on_click=request_measurement,
            args=(*args, True),
        )
        st.button("Close", key="measure_close", on_click=state.set_measured_setting, args=(None,))


def progress(view: RunView) -> None:
    """Draw the progress of the measurement that goes on, in a fragment that ticks; nothing without one."""
    if not view.status.state.is_over and any(not one.is_over for one in read_measured(view)[:1]):
        st.fragment(_progress, run_every=_TICK_S)(view.folder)


def results(view: RunView) -> None:
    """Draw the results, in a fragment that ticks while one is to come."""
    is_open = not view.status.state.is_over and any(
        not one.is_over or _waits_for_judge(one) for one in read_measured(view)[:1]
    )
    st.fragment(_results, run_every=_RESULTS_S if is_open else None)(view.folder)


def _progress(folder: RunFolder) -> None:
    view = read_view(folder)
    measurement = next(iter(read_measured(view)), None)
    if measurement is None or measurement.is_over:
        return
    remaining = measurement.remaining_text(view.status.state)
    eta = "" if remaining is None else f" · {remaining}"
    text = f"Measuring {measurement.title} · {measurement.progress}{eta}"
    with st.container(
        horizontal=True, vertical_alignment="center", gap="small", border=True, key="measuring"
    ):
        st.progress(min(1.0, measurement.pairs / measurement.next_judgment), text=plain(text))
        if disabled_reason(view) is None:
            st.button(
                "End",
                key="measure_end",
                icon=":material/stop_circle:",
                help="Ends the measurement with what it has; the settings before it return.",
                on_click=end_measurement,
                args=(view.folder,),
            )


def _results(folder: RunFolder) -> None:
    measurements = read_measured(read_view(folder))
    if not measurements:
        return
    with st.container(border=True, key="measured", gap="small"):
        heading("Measured effects", help=_HELP)
        newest, *earlier = measurements
        _result(newest)
        for measurement in earlier:
            with st.expander(plain(f"{measurement.title}: {measurement.effect.main.verdict}")):
                _result(measurement)


def _waits_for_judge(measurement: Measurement) -> bool:
    return bool(measurement.plan.keeps_if_better) and measurement.effect.is_better and not measurement.is_kept


def _result(measurement: Measurement) -> None:
    main = measurement.effect.main
    if not measurement.is_over and main.effect is None:
        st.caption(plain(f"{measurement.title}: {main.note} so far."))
    else:
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            word = main.verdict if measurement.is_over else f"so far: {main.verdict}"
            st.badge(plain(word), color=_COLORS.get(main.word, "blue"))  # type: ignore[arg-type]  # a Literal
            st.markdown(plain(f"{measurement.title}. {measurement.sentence}"), width="content")
    figures = [figure for figure in measurement.effect.figures if figure.effect is not None]
    if figures:
        table(
            [_row(figure) for figure in figures],
            alt=f"Measured effect of {measurement.title}",
            key=f"measured_{measurement.plan.number}",
        )
    missing = [f.kind.name for f in measurement.effect.figures if f.effect is None]
    if figures and missing:
        st.caption(plain(f"Not measured here: {', '.join(missing)}."))


def outcome(measurement: Measurement) -> None:
    """Draw the outcome of a measurement in one line, for advice."""
    main = measurement.effect.main
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        word = main.verdict if measurement.is_over else "measuring"
        st.badge(plain(word), icon=":material/science:", color=_COLORS.get(main.word, "blue"))  # type: ignore[arg-type]  # a Literal
        st.markdown(plain(f"Measured {measurement.title}. {measurement.sentence}"), width="content")


def _row(figure: MeasuredFigure) -> dict[str, str]:
    kind = figure.kind
    text = words.relative if kind.is_ratio else words.figure
    return {
        "figure": kind.name,
        "A": kind.text(figure.before),
        "B": kind.text(figure.after),
        "effect": text(figure.effect),
        "95 % interval": f"{text(figure.low)} to {text(figure.high)}",
        "verdict": figure.verdict,
    }


def _spec(view: RunView, name: str) -> SettingSpec | None:
    """Return the declaration of a setting, with the values that the run's device supports."""
    if name not in SPECS:
        declared = next((one for one in view.declared if one.name == name), None)
        return None if declared is None else spec_of_declared(declared)
    if name == "amp" and view.device is not None:
        return SPECS[name]._replace(choices=tuple(view.device.amp_modes))
    return SPECS[name]
