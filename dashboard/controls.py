"""The live page's control bar: commands and settings of an active run.

A widget shows the setting in effect, overlaid with pending requests. Both are read from disk, so rejections,
changes from the shell and other browser windows need no special handling.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import streamlit as st

from dashboard import state
from dashboard.commands import (
    pending_values,
    request_stop,
    send_click,
    send_command,
    send_setting,
    widget_setting,
)
from dashboard.components import heading, plain, read_only_badge, scalar_selection
from dashboard.data.runs import RunView, read_only
from dashboard.data.scalars import default_scalars
from dashboard.form import amp_unavailable_reason, setting_input, spec_of_declared, tooltip
from harness.records.measurement import NO_MEASUREMENT
from harness.records.run import AmpMode, CommandKind, RunState
from harness.records.script import DeclaredSetting, SettingValue
from harness.settings.declaration import Group, Need
from harness.settings.recorded import read_recorded
from harness.settings.spec import SPECS, SettingSpec, ValueKind, unavailable_reason

_AMP_WORDS = {AmpMode.OFF: "AMP off", AmpMode.BF16: "bf16", AmpMode.FP16: "fp16"}


def control_bar(view: RunView) -> None:
    """Draw the bar. Once the run has ended, everything in it is disabled, with the reason."""
    values = pending_values(view)
    over = disabled_reason(view)
    bar = st.container(
        border=True, horizontal=True, vertical_alignment="center", gap="small", key="control_bar"
    )
    with bar:
        if read_only() is None:
            _lifecycle(view)
        else:
            read_only_badge()
        if values:
            for name, draw in _IN_BAR.items():
                if name in values:
                    with st.container(
                        horizontal=True,
                        gap="xxsmall",
                        width="content",
                        vertical_alignment="center",
                        key=f"set_{name}",
                    ):
                        draw(view, values, over)
                        _measure_button(name, unmeasurable_reason(view) or _cannot(view, name), "_bar")
            _declared(view, values, over)
            _more(view, values, over)


def disabled_reason(view: RunView) -> str | None:
    """Return why the run takes no requests; None if it does."""
    locked, status = read_only(), view.status
    if locked is not None:
        return locked
    if view.run is not None and view.run.simulated:
        return "This run is simulated: there is no process to change."
    if status.state.is_over:
        return f"The run has ended ({status.state.value.replace('_', ' ')}); start a new one."
    if view.run is None:
        return "The run is still starting."
    return None


def command_button(
    place: str,
    label: str,
    icon: str,
    purpose: str,
    reason: str | None,
    on_click: Callable[[str], None],
    *,
    is_primary: bool = False,
) -> None:
    """Draw the button at `place` that sends a command once, however late a second click arrives. `purpose` is
    its help, or `reason` if it is disabled; `on_click` takes the button's key, see `state.command_key`."""
    key = state.command_key(place)
    with st.container(width="content", key=place):
        st.button(
            label,
            key=key,
            type="primary" if is_primary else "secondary",
            icon=icon,
            disabled=reason is not None,
            help=plain(reason or purpose),
            on_click=on_click,
            args=(key,),
        )


def unmeasurable_reason(view: RunView) -> str | None:
    """Return why the run takes no measurements; None if it does."""
    return disabled_reason(view) or (NO_MEASUREMENT if view.has_ranks else None)


def _lifecycle(view: RunView) -> None:
    current = view.status.state
    if not current.is_over and not (view.run is not None and view.run.simulated):
        stopping = current is RunState.STOPPING
        st.button(
            "Stopping…" if stopping else "Stop",
            key="stop",
            type="primary",
            icon=":material/stop:",
            disabled=stopping,
            help="Ends the run after the current step and keeps its log.",
            on_click=request_stop,
            args=(view.folder,),
        )
        paused = current is RunState.PAUSED
        st.button(
            "Resume" if paused else "Pause",
            # Two buttons: a late click on "Pause" is none on "Resume".
            key="resume" if paused else "pause",
            icon=":material/play_arrow:" if paused else ":material/pause:",
            disabled=current not in (RunState.RUNNING, RunState.PAUSED),
            on_click=send_command,
            args=(view.folder, CommandKind.RESUME if paused else CommandKind.PAUSE),
        )
    if st.button("New run", key="new_run", icon=":material/add:"):
        st.switch_page(state.page("new"))


def _batch_size(view: RunView, values: Mapping[str, Any], over: str | None) -> None:
    spec = SPECS["batch_size"]
    now = int(values["batch_size"])
    first = _first_batch_size(view) or now
    sizes = sorted({max(1, first // 2), first, first * 2, first * 4, now})
    key = _key("batch_size", now)
    st.segmented_control(
        spec.label,
        sizes,
        default=now,
        key=key,
        required=True,
        format_func=lambda size: f"bs {size}",
        label_visibility="collapsed",
        disabled=over is not None,
        help=None,
        on_change=send_setting,
        args=(view.folder, "batch_size", key, now),
    )


def _first_batch_size(view: RunView) -> int | None:
    """Return the batch size before any change. The first settings of a script have none: its loader is
    identified with its first batch."""
    recorded = (read_recorded(row.settings) for row in view.history)
    sizes = (settings.get("batch_size") for settings in recorded if settings is not None)
    return next((int(size) for size in sizes if size), None)


def _amp(view: RunView, values: Mapping[str, Any], over: str | None) -> None:
    """Draw the AMP modes; those the device does not support are disabled buttons with the reason."""
    able = list(AmpMode) if view.device is None else list(view.device.amp_modes)
    now = AmpMode(values["amp"])
    key = _key("amp", now)
    with st.container(horizontal=True, gap="xxsmall", width="content", vertical_alignment="center"):
        st.segmented_control(
            "AMP",
            [mode for mode in AmpMode if mode in able or mode is now],
            default=now,
            key=key,
            required=True,
            format_func=lambda mode: _AMP_WORDS[mode],
            label_visibility="collapsed",
            disabled=over is not None,
            on_change=send_setting,
            args=(view.folder, "amp", key, now),
        )
        for mode in AmpMode:
            if view.device is not None and mode not in able and mode is not now:
                reason = amp_unavailable_reason(mode, view.device)
                st.button(_AMP_WORDS[mode], key=f"no_{mode.value}", disabled=True, help=reason)


def _pinned(view: RunView, values: Mapping[str, Any], over: str | None) -> None:
    spec = SPECS["pin_memory"]
    reason = over or _cannot(view, "pin_memory")
    now = bool(values["pin_memory"])
    key = _key("pin_memory", now)
    st.toggle(
        "Pinned",
        now,
        key=key,
        disabled=reason is not None,
        help=tooltip(spec, reason),
        on_change=send_setting,
        args=(view.folder, "pin_memory", key, now),
    )


def _empty_cache(view: RunView, values: Mapping[str, Any], over: str | None) -> None:
    reason = over or _cannot(view, "empty_cache_every")
    every = int(values["empty_cache_every"])
    with st.container(horizontal=True, gap="xxsmall", width="content", vertical_alignment="center"):
        command_button(
            "empty_cache",
            "empty_cache()",
            ":material/cleaning_services:",
            "Releases cached memory now, between two steps.",
            reason,
            on_click=partial(send_click, view.folder, CommandKind.EMPTY_CACHE),
        )
        with st.popover(
            f"every {every:,}" if every else "every…", key="empty_cache_popover", disabled=reason is not None
        ):
            _setting(view, "empty_cache_every", values, reason)


def _more(view: RunView, values: Mapping[str, Any], over: str | None) -> None:
    """Draw every other setting that can change during a run, by group."""
    with st.popover("More", icon=":material/tune:", key="more_settings", disabled=over is not None):
        if "batch_size" in values:
            _setting(view, "batch_size", values, over)
        for group in Group:
            specs = [
                spec
                for spec in SPECS.values()
                if spec.is_live
                and spec.group is group
                and spec.name in values
                and spec.name not in _IN_BAR
                and _applies(spec, values)
            ]
            if specs:
                heading(group.value, level=3)
            for spec in specs:
                _setting(view, spec.name, values, over or _cannot(view, spec.name))
        _unavailable(view)


def _applies(spec: SettingSpec, values: Mapping[str, Any]) -> bool:
    """Return whether the run can have the setting: one that trains a model of the catalog has none of those
    for scripts."""
    return spec.needs is not Need.SCRIPT or "model" not in values


# Settings of the run's end, of recovery and of what is recorded: steps are the same with any value.
_UNMEASURED = frozenset(
    spec.name for spec in SPECS.values() if spec.group is Group.RUN or spec.name.startswith("oom_")
)
# The settings in the bar itself, in order.
_IN_BAR: Mapping[str, Callable[[RunView, Mapping[str, Any], str | None], None]] = {
    "batch_size": _batch_size,
    "amp": _amp,
    "pin_memory": _pinned,
    "empty_cache_every": _empty_cache,
}


def _measure_button(name: str, reason: str | None, place: str = "") -> None:
    """Draw the button that opens the form of a setting's measurement."""
    label = SPECS[name].label if name in SPECS else name
    st.button(
        plain(f"Measure {label}"),  # For screen readers: stepscope.css shows the icon alone.
        key=f"measure_{name}{place}",
        type="tertiary",
        icon=":material/science:",
        disabled=reason is not None,
        help=plain(reason or f"Measure this: the effect of a change of {label} on speed, memory and loss."),
        on_click=state.set_measured_setting,
        args=(name,),
    )


@contextmanager
def _measurable(view: RunView, name: str, reason: str | None) -> Iterator[None]:
    """Draw a setting of a popover in this context, with the button of its measurement to the right."""
    is_toggle = name in SPECS and SPECS[name].kind is ValueKind.BOOL
    with st.container(horizontal=True, gap="xxsmall", vertical_alignment="center" if is_toggle else "bottom"):
        with st.container():
            yield
        if name not in _UNMEASURED:
            _measure_button(name, unmeasurable_reason(view) or reason)


def _declared(view: RunView, values: Mapping[str, Any], over: str | None) -> None:
    """Draw the settings that the script declared for itself."""
    settings = [setting for setting in view.declared if setting.name not in SPECS]
    if not settings:
        return
    with st.popover("Script", icon=":material/code:", key="declared_settings", disabled=over is not None):
        for setting in settings:
            value = _valid(setting, values.get(setting.name))
            key = _key(setting.name, value, "script")
            args = (view.folder, setting.name, key, value)
            with _measurable(view, setting.name, over):
                setting_input(spec_of_declared(setting), key, value, over, send_setting, args)


def _valid(setting: DeclaredSetting, value: object) -> SettingValue:
    """Return `value` where the setting can have it, else the default."""
    try:
        return setting.check(value)
    except ValueError:
        return setting.default


def _unavailable(view: RunView) -> None:
    """Draw the settings that this script cannot change, each with its reason."""
    if view.unavailable:
        heading("Not available for this script", level=3)
    for name, reason in view.unavailable.items():
        label = SPECS[name].label if name in SPECS else name
        st.caption(f"**{plain(label)}**: {plain(reason)}")


def _setting(view: RunView, name: str, values: Mapping[str, Any], reason: str | None) -> None:
    """Draw one setting's widget in a popover."""
    key = _key(name, values[name], "popover")
    with _measurable(view, name, reason):
        setting_input(
            SPECS[name], key, values[name], reason, send_setting, (view.folder, name, key, values[name])
        )


def _key(name: str, now: object, place: str = "bar") -> str:
    """Return the key of a setting's widget that shows the value in effect or requested, `now`. A value from
    elsewhere makes a new widget, and so does a refused one."""
    return state.setting_key(f"{place}_{name}", now, partial(widget_setting, name))


def _cannot(view: RunView, name: str) -> str | None:
    return None if view.device is None else unavailable_reason(SPECS[name], view.device)


def view_bar(run: str, scalars: Sequence[str]) -> None:
    """Draw the chart's view options in its top line; they do not affect the run. `scalars` are the names of
    the numbers that a script logged."""
    with st.container(
        horizontal=True, horizontal_alignment="right", vertical_alignment="center", key="view_bar"
    ):
        if scalars:
            _scalars(run, scalars)
        _view()


def _scalars(run: str, names: Sequence[str]) -> None:
    """Draw the selection of the scalars in the chart.

    Those shown are the widget's default and not put into the session state, which is sent once: the browser
    draws the widget when the popover opens, ticks later.
    """
    selected = state.selected_scalars(run)
    charted = default_scalars(names) if selected is None else [name for name in selected if name in names]
    with st.popover(f"Scalars · {len(charted)}", icon=":material/show_chart:", key="scalars"):
        scalar_selection(names, state.scalars_key(run), charted, width=420)


def _view() -> None:
    st.segmented_control(
        "Steps shown",
        [window.value for window in state.ChartWindow],
        # A value set by session_state is sent once, and a tick may come before it is drawn.
        default=state.ChartWindow.ALL.value,
        key=state.Key.WINDOW,
        required=True,
        label_visibility="collapsed",
    )
    st.toggle("Phases", key=state.Key.PHASES)
    st.toggle("Freeze view", key=state.Key.FROZEN)
