"""The form of a tune. An expander has the settings to compare, the device and the baseline.

What differs from the defaults is in the address, so that it stays when the page is loaded again.
"""

from typing import NamedTuple

import streamlit as st

from dashboard import new_run, state
from dashboard.callbacks import to_the_end
from dashboard.data import own_models, tunes
from dashboard.form import setting_input
from dashboard.new_run import Base
from dashboard.views.device import device_selection
from harness.catalog import ModelSpec
from harness.errors import StepscopeError
from harness.records.run import DeviceFacts
from harness.settings.declaration import Group, Need
from harness.settings.spec import SPECS
from harness.tune.candidates import selectable
from harness.tune.rows import Goal

_BUDGETS_S = (120, 300, 600, 1800, 3600)
_DEFAULT_BUDGET_S = 600
_GOALS = {Goal.THROUGHPUT.value: "samples/s", Goal.MEMORY.value: "peak memory"}
# Selected by widgets of their own.
_ELSEWHERE = frozenset({"model", "preset", "device"})
# Settings of a run's end, of recovery and of faults: a tune has its own, or none.
_NOT_OF_A_BASELINE = frozenset(
    spec.name for spec in SPECS.values() if spec.group is Group.RUN or spec.name.startswith("oom_")
)


class _Choices(NamedTuple):
    model: ModelSpec
    preset: str
    goal: Goal
    budget_s: float


def tune_form() -> None:
    """Draw the form and its Start."""
    with st.container(border=True, key="tune_form"):
        choices = _head()
        base = new_run.base(choices.model, choices.model.preset(choices.preset))
        with st.expander("Settings to compare, device and baseline", key="tune_more"):
            selected, facts = _more(base)
        # Another button after each start: a second click on this one, from a page that is not drawn anew yet,
        # would start a second tune.
        key = f"tune_start_{state.tunes_started()}"
        if st.button("Start", key=key, type="primary", icon=":material/play_arrow:"):
            _start(choices, base, selected, facts)
            st.rerun()


def _head() -> _Choices:
    models = {key: spec for key, spec in own_models.models().items() if spec.missing is None}
    model_column, size_column, goal_column, budget_column = st.columns(4, vertical_alignment="bottom")
    with model_column:
        names = list(models)
        default = names.index(str(SPECS["model"].default))
        key = st.selectbox(
            "Model",
            names,
            default,
            key="tune_model",
            format_func=lambda name: models[name].title,
            bind="query-params",
        )
    with size_column:
        titles = {preset.name: preset.title for preset in models[key].presets}
        preset = st.selectbox(
            "Size",
            list(titles),
            key=f"tune_size_{key}",
            format_func=titles.__getitem__,
            bind="query-params",
        )
    with goal_column:
        goal = st.selectbox(
            "Improve", list(_GOALS), key="tune_goal", format_func=_GOALS.__getitem__, bind="query-params"
        )
    with budget_column:
        budget_s = st.selectbox(
            "Time",
            _BUDGETS_S,
            _BUDGETS_S.index(_DEFAULT_BUDGET_S),
            key="tune_budget",
            format_func=lambda seconds: f"{seconds // 60} min",
            bind="query-params",
        )
    return _Choices(models[key], preset, Goal(goal), budget_s)


def _more(base: Base) -> tuple[list[str], DeviceFacts | None]:
    """Draw the rest; return the settings to compare, none for all, and the facts of the device."""
    left, right = st.columns(2)
    with right:
        device_selection(is_in_address=True)
    facts = new_run.facts_of(str(state.widget_value(state.new_key("device"))))
    with left:
        selected = st.multiselect(
            "Settings to compare",
            [name for name in selectable() if base.unavailable_reason(SPECS[name], facts) is None],
            key=f"tune_selected_{base.model.key}",
            format_func=_label,
            placeholder="All",
            bind="query-params",
            help="Each one by itself, then those that are better together. Fewer settings take less time.",
        )
    changed = st.multiselect(
        "Settings of the baseline",
        [name for name in SPECS if _is_of_baseline(name, base, facts)],
        key=f"tune_baseline_{base.model.key}",
        format_func=_label,
        placeholder="The defaults of the model and its size",
        bind="query-params",
        help="The settings that all others are compared with. Select one to change its value.",
    )
    columns = st.columns(3, gap="medium")
    for at, name in enumerate(changed):
        with columns[at % 3]:
            _baseline_input(name, base)
    return selected, facts


def _label(name: str) -> str:
    return SPECS[name].label


def _is_of_baseline(name: str, base: Base, facts: DeviceFacts | None) -> bool:
    spec = SPECS[name]
    if name in _ELSEWHERE or name in _NOT_OF_A_BASELINE or spec.needs in (Need.SCRIPT, Need.RANKS):
        return False
    return base.unavailable_reason(spec, facts) is None


def _baseline_input(name: str, base: Base) -> None:
    if name != "data":
        setting_input(SPECS[name], base.key(name), base.values[name], is_in_address=True)
        return
    titles = {source.key: source.title for source in own_models.sources(base.model)}
    options = list(titles)
    st.selectbox(
        SPECS[name].label,
        options,
        options.index(base.values[name]) if base.values[name] in options else 0,
        key=base.key(name),
        format_func=titles.__getitem__,
        bind="query-params",
    )


@to_the_end
def _start(choices: _Choices, base: Base, selected: list[str], facts: DeviceFacts | None) -> None:
    try:
        settings = new_run.validated_settings(base.form_values(facts))
        folder = tunes.start_tune(settings, choices.goal, choices.budget_s, selected)
    except StepscopeError as error:
        state.set_problem(str(error))
    else:
        state.set_widget_value(state.Key.TUNE, folder.tune_id)
        state.count_started_tune()
