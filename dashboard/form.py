"""Widgets of settings, derived from their declarations."""

import math
import sys
from collections.abc import Callable
from typing import Any

import streamlit as st

from dashboard.components import plain
from harness.records.run import AmpMode, DeviceFacts, DeviceKind
from harness.records.script import DeclaredSetting
from harness.settings.declaration import Effect, Group
from harness.settings.spec import SettingSpec, ValueKind

# The largest integer that JavaScript represents exactly: a number field has none beyond.
_LARGEST_WHOLE = 2**53 - 1


def setting_input(
    spec: SettingSpec,
    key: str,
    value: Any,
    reason: str | None = None,
    on_change: Callable[..., None] | None = None,
    args: tuple[Any, ...] = (),
    *,
    is_in_address: bool = False,
) -> None:
    """Draw the widget of one setting under `key` with the initial `value`; a `reason` disables it and becomes
    its tooltip. With `is_in_address` another value is put into the address of the page.

    The value is the widget's default and not put into the session state: a widget in a closed popover is
    drawn when the popover opens, and would then report its default as if a person had chosen it.
    """
    label = f"{spec.label}, {spec.unit}" if spec.unit else spec.label
    more: dict[str, Any] = {
        "key": key,
        "help": tooltip(spec, reason),
        "disabled": reason is not None,
        "on_change": on_change,
        "args": args,
        "bind": "query-params" if is_in_address else None,
    }
    if spec.kind is ValueKind.BOOL:
        st.toggle(label, bool(value), **more)
    elif spec.kind is ValueKind.CHOICE:
        st.selectbox(label, list(map(str, spec.choices)), spec.choices.index(str(value)), **more)
    elif spec.kind is ValueKind.TEXT:
        st.text_input(label, value or "", **more)
    elif spec.kind is ValueKind.INT and value is not None and abs(value) > _LARGEST_WHOLE:
        reason = reason or f"Too large for a field; change it with: stepscope set RUN {spec.name}=…"
        st.text_input(label, str(value), key=f"{key}_large", help=plain(reason), disabled=True)
    else:
        st.number_input(label, **_numbers(spec, value), **more)


def _numbers(spec: SettingSpec, value: Any) -> dict[str, Any]:
    """Return a number field's bounds, value and step."""
    whole = spec.kind is ValueKind.INT
    cast: Callable[[float], float] = _shortened if whole else float
    return {
        "min_value": None if spec.minimum is None else cast(spec.minimum),
        "max_value": None if spec.maximum is None else cast(spec.maximum),
        "value": None if value is None else int(value) if whole else float(value),
        "step": 1 if whole else _step(spec, value),
        "format": None if whole else "%g",
        "placeholder": "none" if spec.optional else None,
    }


def _shortened(bound: float) -> int:
    """Return a bound of whole numbers, or the nearest number that a field can have."""
    return max(-_LARGEST_WHOLE, min(int(bound), _LARGEST_WHOLE))


def _step(spec: SettingSpec, value: Any) -> float:
    """Return a tenth of the value's power of ten, so that − and + suit a learning rate as well as a delay."""
    size = abs(float(value or spec.default or 1.0)) or 1.0
    return float(10.0 ** (math.floor(math.log10(size)) - (1 if size < 1 else 0)))


def spec_of_declared(setting: DeclaredSetting) -> SettingSpec:
    """Return the spec of a setting that a script declared, for its widget."""
    return SettingSpec(
        name=setting.name,
        label=plain(setting.label),
        help="Declared by the script.",
        group=Group.RUN,
        effect=Effect.NEXT_STEP,
        devices=frozenset(DeviceKind),
        unit="",
        advanced=False,
        short=setting.label,
        needs=None,
        affects_peak=True,
        affects_free_memory=False,
        affects_prediction=False,
        trial_values=(),
        is_identifier=False,
        kind=ValueKind(setting.kind.value),
        optional=False,
        default=setting.default,
        minimum=setting.low,
        above=None,
        maximum=setting.high,
        choices=setting.choices,
    )


def alternative(spec: SettingSpec, now: Any) -> Any:
    """Return a value to compare with the one in effect: the other one, the next one, twice or half."""
    if spec.kind is ValueKind.BOOL:
        return not now
    if spec.kind is ValueKind.CHOICE:
        at = spec.choices.index(now) if now in spec.choices else 0
        return spec.choices[(at + 1) % len(spec.choices)]
    if spec.kind is ValueKind.TEXT or now is None:
        return now
    double = _within(spec, 2 * now or 1)
    half = now // 2 if spec.kind is ValueKind.INT else now / 2
    return _within(spec, half) if double == now else double


def _within(spec: SettingSpec, value: float) -> float:
    """Return `value`, or the nearest one that the setting and its field can have."""
    most: float = _LARGEST_WHOLE if spec.kind is ValueKind.INT else sys.float_info.max
    low = -most if spec.minimum is None else max(spec.minimum, -most)
    high = most if spec.maximum is None else min(spec.maximum, most)
    return max(low, min(value, high))


def tooltip(spec: SettingSpec, reason: str | None) -> str:
    """Return the widget's tooltip: why it is disabled, else its effect, its bounds and when it applies."""
    if reason is not None:
        return plain(reason)
    effect = "" if spec.effect is Effect.NEW_RUN else f" Takes effect: {spec.effect.value}."
    allowed = (
        f" Allowed: {spec.bounds}." if spec.bounds and spec.kind in (ValueKind.INT, ValueKind.FLOAT) else ""
    )
    return plain(f"{spec.help}{allowed}{effect}")


def setting_value(spec: SettingSpec, value: Any) -> Any:
    """Return a widget's value as a setting's value: an empty field of an optional setting is None."""
    if spec.optional and value in ("", None):
        return None
    return value


def amp_unavailable_reason(mode: AmpMode, facts: DeviceFacts) -> str:
    """Return the tooltip of an AMP mode that the device does not support."""
    able = ", ".join(facts.amp_modes)
    return plain(f"{mode.value} is not available on {facts.name}; it supports: {able}.")
