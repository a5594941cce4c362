"""Requests to a run: the callbacks of buttons and widgets, and the settings with pending requests.

A rejection is one sentence, shown at the top of the page for some seconds.
"""

import json
from collections.abc import Mapping
from typing import Any

from dashboard import state
from dashboard.callbacks import to_the_end
from dashboard.data.runs import RunView, read_view, supervisor
from dashboard.form import setting_value
from harness.errors import StepscopeError
from harness.records.measurement import DEFAULT_PAIRS, MeasureRequest
from harness.records.run import CommandKind
from harness.settings.spec import SPECS
from harness.store.folder import RunFolder

_SOURCE = "dashboard"


def pending_values(view: RunView) -> dict[str, Any]:
    """Return the settings in effect, overlaid with pending requests."""
    if view.settings is None:
        return {}
    values: dict[str, Any] = view.settings.to_json()
    for command in view.pending:
        if command.kind == CommandKind.SET:
            values |= command.values
    return values


@to_the_end
def send_command(folder: RunFolder, kind: CommandKind) -> None:
    """Send a command without a payload."""
    _send(folder, kind, {})


@to_the_end
def send_click(folder: RunFolder, kind: CommandKind, key: str) -> None:
    """Send the command of the button under `key`, without a payload, once: a later click is on the button
    that is drawn in its place."""
    if not state.is_replaced(key) and _send(folder, kind, {}):
        state.replace_widget(key)


def widget_setting(name: str, value: Any) -> Any:
    """Return a widget's value as one of the setting `name`, which may be one of a script."""
    return setting_value(SPECS[name], value) if name in SPECS else value


@to_the_end
def send_setting(folder: RunFolder, name: str, key: str, drawn: Any) -> None:
    """Send the value of the widget under `key`, drawn with the value `drawn`, for the setting `name`.

    It is not always a person's change: Streamlit also calls when a replaced widget's value comes late, and
    when one that was drawn before comes back with the value in effect.
    """
    value = widget_setting(name, state.widget_value(key))
    if value == drawn and state.is_replaced(key):
        return
    values = pending_values(read_view(folder))
    if name in values and values[name] == value:
        return
    _send(folder, CommandKind.SET, {name: value})


@to_the_end
def send_settings(folder: RunFolder, values: Mapping[str, Any], source: str) -> None:
    """Send several settings at once; `source` names the part of the page that requests them."""
    _send(folder, CommandKind.SET, dict(values), source)


@to_the_end
def request_profile(folder: RunFolder, key: str) -> None:
    """Request a profile with the options of the widgets next to its button, the one under `key`, once."""
    if state.is_replaced(key):
        return
    steps, memory, stacks = (
        state.widget_value(key)
        for key in (state.Key.PROFILE_STEPS, state.Key.PROFILE_MEMORY, state.Key.PROFILE_STACKS)
    )
    payload = {} if steps is None else {"steps": int(steps)}
    extra = {name: True for name, is_on in (("memory", memory), ("stacks", stacks)) if is_on}
    if _send(folder, CommandKind.PROFILE, payload | extra):
        state.replace_widget(key)


@to_the_end
def request_measurement(folder: RunFolder, name: str, key: str, keep_if_better: bool) -> None:
    """Request the measurement of the value of the widget under `key` for the setting `name`."""
    value = widget_setting(name, state.widget_value(key))
    pairs = state.widget_value(state.Key.MEASURE_PAIRS) or DEFAULT_PAIRS
    request = MeasureRequest({name: value}, int(pairs), keep_if_better)
    if _send(folder, CommandKind.MEASURE, request._asdict()):
        state.set_measured_setting(None)


@to_the_end
def try_settings(folder: RunFolder, values: Mapping[str, Any], source: str) -> None:
    """Request a measurement of several settings, which are kept if they are better."""
    request = MeasureRequest(dict(values), keep_if_better=True)
    _send(folder, CommandKind.MEASURE, request._asdict(), source)


@to_the_end
def end_measurement(folder: RunFolder) -> None:
    """Request the end of the measurement in progress."""
    _send(folder, CommandKind.END_MEASUREMENT, {})


@to_the_end
def request_stop(folder: RunFolder) -> None:
    """Request the run to stop; a helper process escalates if it does not. If the command cannot be sent, the
    page shows the reason."""
    try:
        undelivered = supervisor().request_stop(folder, source=_SOURCE)
        if undelivered is not None:
            state.set_problem(f"{undelivered} The run is stopped by signals instead.")
    except StepscopeError as error:
        state.set_problem(str(error))
    state.poll_faster()


def _send(folder: RunFolder, kind: CommandKind, payload: dict[str, Any], source: str = _SOURCE) -> bool:
    """Send a command; return False and show the reason if it is rejected. The same command within a second
    is taken for the same click and not sent again."""
    if state.is_repeated((folder.run_id, kind, json.dumps(payload, sort_keys=True))):
        return True
    try:
        supervisor().send(folder, kind, payload, source=source)
    except StepscopeError as error:
        state.set_problem(str(error))
        return False
    state.poll_faster()
    return True
