"""The form for a new run: model, data, device and settings, with the equivalent shell command."""

from typing import Any

import streamlit as st

from dashboard import new_run, state
from dashboard.components import heading, page_title, plain, show_problem
from dashboard.data import own_models
from dashboard.data.runs import read_only
from dashboard.form import amp_unavailable_reason, setting_input
from dashboard.new_run import Base
from dashboard.views.device import device_selection
from dashboard.views.prediction import prediction_panel
from dashboard.views.script import own_command
from harness import words
from harness.catalog import ModelSpec, Preset
from harness.errors import StepscopeError
from harness.records.run import AmpMode, DeviceFacts
from harness.settings.declaration import Group, Need
from harness.settings.resolve import no_effect_reason
from harness.settings.spec import SPECS, SettingSpec
from harness.store.home import name_stem

_HEAD = frozenset(new_run.HEAD_SETTINGS)


def page() -> None:
    """Draw the page."""
    page_title("New run")
    show_problem()
    reason = read_only()
    if reason is not None:
        st.info(plain(reason), icon=":material/visibility:")
        return
    state.apply_queued_values()
    facts = new_run.facts_of(str(state.widget_value(state.new_key("device")) or "auto"))
    model, preset = _model(facts)
    base = new_run.base(model, preset)
    left, right = st.columns([3, 2], gap="large")
    with left:
        _workload(model, base)
        _pace(base, facts)
        below = st.container()
    with right:
        name = _start(model)
    _settings(base, facts)
    state.clear_queued_values()
    values = base.form_values(facts)
    with right:
        _command(values, name)
        own_command()
    with below:
        _prediction(base, values, facts)
    if state.is_starting():
        _begin(values, name)


def _model(facts: DeviceFacts | None) -> tuple[ModelSpec, Preset]:
    models = own_models.models()
    usable = {key: spec.title for key, spec in models.items() if spec.missing is None}
    missing = [spec.missing for spec in models.values() if spec.missing is not None]
    first, second = st.columns([3, 2], gap="large")
    key = state.new_key("model")
    names = list(usable)
    default = str(SPECS["model"].default)
    if state.widget_value(key) not in usable:
        state.set_value_of_drawn(key, default)
    with first:
        st.selectbox(
            "Model",
            names,
            names.index(default),
            key=key,
            format_func=usable.__getitem__,
            help=plain(" ".join(missing[:1])) if missing else None,
        )
    model = models[str(state.widget_value(key))]
    names = [preset.name for preset in model.presets]
    key = state.new_key("preset", model.key)
    default = new_run.default_size(model, facts)
    state.set_default_value(key, default, names)
    with second:
        titles = {p.name: _size_title(p) for p in model.presets}
        st.segmented_control(
            "Size",
            names,
            default=default,
            key=key,
            required=True,
            format_func=titles.__getitem__,
        )
    preset = model.preset(str(state.widget_value(key)))
    st.caption(plain(f"{model.summary} {preset.title}: {preset.scale}"))
    return model, preset


def _size_title(preset: Preset) -> str:
    if preset.parameters is None:
        return preset.title
    return f"{preset.title} · {_parameters(preset.parameters)}"


def _parameters(number: int) -> str:
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return words.count(number)


def _workload(model: ModelSpec, base: Base) -> None:
    sources = {spec.key: spec for spec in own_models.sources(model)}
    key = base.key("data")
    names = list(sources)
    data, device = st.columns(2)
    with data:
        first = names.index(base.values["data"])
        st.selectbox("Data", names, first, key=key, format_func=lambda name: sources[name].title)
    with device:
        device_selection()
    source = sources[str(state.widget_value(key))]
    st.caption(plain(source.summary))
    if source.needs_path:
        _input(SPECS["data_path"], base, None)


def _pace(base: Base, facts: DeviceFacts | None) -> None:
    batch, amp = st.columns(2)
    with batch:
        _input(SPECS["batch_size"], base, facts)
    with amp:
        _amp(base, facts)


def _amp(base: Base, facts: DeviceFacts | None) -> None:
    """Draw the AMP modes; those the device does not support are disabled buttons with the reason."""
    able = list(AmpMode) if facts is None else list(facts.amp_modes)
    key = base.key("amp")
    mode_in_form = AmpMode(state.widget_value(key) or base.values["amp"])
    mode_in_form = mode_in_form if mode_in_form in able else AmpMode.OFF
    state.set_value_of_drawn(key, mode_in_form)
    with st.container(gap="xxsmall"):
        st.caption(SPECS["amp"].label, help=plain(SPECS["amp"].help))
        modes = st.container(horizontal=True, gap="xxsmall", vertical_alignment="center")
    with modes:
        st.segmented_control(
            SPECS["amp"].label,
            [mode for mode in AmpMode if mode in able],
            default=mode_in_form,
            key=key,
            required=True,
            format_func=lambda mode: mode.value,
            label_visibility="collapsed",
        )
        for mode in AmpMode:
            if facts is not None and mode not in able:
                st.button(
                    mode.value,
                    key=f"no_{mode.value}",
                    disabled=True,
                    help=amp_unavailable_reason(mode, facts),
                )


def _input(spec: SettingSpec, base: Base, facts: DeviceFacts | None) -> None:
    reason = base.unavailable_reason(spec, facts)
    if reason is not None:
        setting_input(spec, f"{base.key(spec.name)}_unavailable", spec.default, reason)
    else:
        setting_input(spec, base.key(spec.name), base.values[spec.name])


def _settings(base: Base, facts: DeviceFacts | None) -> None:
    """Draw every other setting by group; advanced ones in an expander."""
    advanced = []
    groups = st.columns(3, gap="medium")
    for at, group in enumerate(group for group in Group):
        specs = [spec for spec in SPECS.values() if spec.group is group and spec.name not in _HEAD]
        advanced += [spec for spec in specs if spec.advanced]
        plainly = [spec for spec in specs if not spec.advanced and _matters(spec, base.model)]
        if not plainly:
            continue
        with groups[at % 3], st.container(border=True):
            heading(group.value)
            for spec in plainly:
                _input(spec, base, facts)
    with st.expander("Advanced", key="advanced"):
        columns = st.columns(3, gap="medium")
        for at, spec in enumerate(advanced):
            with columns[at % 3]:
                _input(spec, base, facts)


def _matters(spec: SettingSpec, model: ModelSpec) -> bool:
    """Return whether a setting applies to this model: images have no sequence length, texts no image size,
    and no model of the catalog has what is for scripts, or is started here in several processes."""
    is_for_some = spec.needs in (Need.IMAGES, Need.TEXT, Need.SCRIPT, Need.RANKS)
    return not is_for_some or no_effect_reason(spec, model) is None


def _start(model: ModelSpec) -> str:
    name = st.text_input(
        "Name",
        key=state.NEW_NAME,
        max_chars=120,
        placeholder=f"{name_stem(model.key)}-1, {name_stem(model.key)}-2, …",
        help="Any text. If empty, that of the model and a number.",
    )
    st.button(
        "Starting…" if state.is_starting() else "Start",
        key="start",
        type="primary",
        icon=":material/play_arrow:",
        width="stretch",
        disabled=state.is_starting(),
        on_click=state.begin_start,
    )
    st.button(
        "Start when free",
        key="enqueue",
        icon=":material/hourglass_top:",
        width="stretch",
        disabled=state.is_starting(),
        help="Adds the run to the queue: it starts when its device has no run and its predicted peak is free "
        "there. In a shell: `stepscope queue add`.",
        on_click=state.begin_start,
        args=(True,),
    )
    return name or ""


def _prediction(base: Base, values: dict[str, Any], facts: DeviceFacts | None) -> None:
    """Draw the predicted memory of the run; nothing while the form is invalid."""
    try:
        settings = new_run.validated_settings(values)
    except StepscopeError:
        return
    prediction_panel(base, settings, facts)


def _command(values: dict[str, Any], name: str) -> None:
    st.caption("Equivalent shell command:")
    st.code(new_run.command(values, name), language="bash", wrap_lines=True)


def _begin(values: dict[str, Any], name: str) -> None:
    """Start the run, or add it to the queue; an error is shown at the top and the form keeps its values."""
    try:
        if state.starts_when_free():
            new_run.enqueue(values, name)
            state.end_start()
            st.switch_page(state.page("runs"))
        folder = new_run.start(values, name)
    except StepscopeError as error:
        state.end_start()
        state.set_problem(str(error))
        st.rerun()
    state.end_start()
    state.poll_faster()
    st.switch_page(state.page("live"), query_params=state.run_query(folder.run_id))
