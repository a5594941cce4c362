"""Specs and validation derived from the declarations in `harness.settings`.

`SPECS` describes every setting, for forms, flags and docs. All values enter through `parse`, `change` and
`parse_text`, which raise SettingError with a sentence for the user.
"""

import difflib
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from harness.errors import SettingError
from harness.files.plain_json import json_object
from harness.records.run import DeviceFacts, DeviceKind
from harness.settings import Settings
from harness.settings.declaration import Effect, Group, Need, Setting
from harness.words import clip, printable


class ValueKind(StrEnum):
    """The kind of a setting's value, which determines its widget and its flag."""

    BOOL = "bool"
    INT = "int"
    FLOAT = "float"
    CHOICE = "choice"
    TEXT = "text"


class SettingSpec(NamedTuple):
    """The properties of one setting, for a form, a flag or a table of the docs."""

    name: str
    label: str
    help: str
    group: Group
    effect: Effect
    devices: frozenset[DeviceKind]
    unit: str
    advanced: bool
    short: str
    needs: Need | None
    affects_peak: bool
    affects_free_memory: bool
    affects_prediction: bool
    trial_values: tuple[Any, ...]
    is_identifier: bool
    kind: ValueKind
    optional: bool
    default: Any
    minimum: float | None
    # An exclusive lower bound.
    above: float | None
    maximum: float | None
    choices: tuple[str, ...]

    @property
    def is_live(self) -> bool:
        """True when the setting can change in a live run."""
        return self.effect is not Effect.NEW_RUN

    @property
    def negative_flag(self) -> str:
        """The shell's flag that turns a switch off."""
        return f"--no-{self.flag.removeprefix('--')}"

    def arguments(self, value: Any) -> list[str]:
        """Return the shell's arguments that set `value`."""
        if self.kind is ValueKind.BOOL:
            return [self.flag if value else self.negative_flag]
        return [self.flag, "none" if value is None else str(value)]

    @property
    def flag(self) -> str:
        """The shell's flag."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return "STEPSCOPE_" + self.name.upper()

    @property
    def bounds(self) -> str:
        """The allowed values, in words."""
        if self.kind is ValueKind.BOOL:
            return "on, off"
        if self.choices:
            return ", ".join(self.choices)
        parts = []
        if self.minimum is not None:
            parts.append(f"at least {_number(self.minimum)}")
        if self.above is not None:
            parts.append(f"above {_number(self.above)}")
        if self.maximum is not None:
            parts.append(f"at most {_number(self.maximum)}")
        return ", ".join(parts)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.12g}"


def _spec(name: str, info: FieldInfo) -> SettingSpec:
    setting = next(m for m in info.metadata if isinstance(m, Setting))
    annotation: Any = info.annotation
    optional = get_origin(annotation) is UnionType and NoneType in get_args(annotation)
    if optional:
        annotation = next(a for a in get_args(annotation) if a is not NoneType)
    choices: tuple[str, ...] = ()
    if issubclass(annotation, StrEnum):
        kind, choices = ValueKind.CHOICE, tuple(annotation)
    else:
        kind = {bool: ValueKind.BOOL, int: ValueKind.INT, float: ValueKind.FLOAT, str: ValueKind.TEXT}[
            annotation
        ]
    return SettingSpec(
        name=name,
        label=setting.label,
        help=setting.help,
        group=setting.group,
        effect=setting.effect,
        devices=setting.devices,
        unit=setting.unit,
        advanced=setting.advanced,
        short=setting.short or setting.label,
        needs=setting.needs,
        affects_peak=setting.affects_peak,
        affects_free_memory=setting.affects_free_memory,
        affects_prediction=setting.affects_prediction,
        trial_values=setting.trial_values,
        is_identifier=setting.is_identifier,
        kind=kind,
        optional=optional,
        default=info.default,
        minimum=_bound(info, Ge, "ge"),
        above=_bound(info, Gt, "gt"),
        maximum=_bound(info, Le, "le"),
        choices=choices,
    )


def _bound(info: FieldInfo, constraint: type, attribute: str) -> float | None:
    for item in info.metadata:
        if isinstance(item, constraint):
            value: float = getattr(item, attribute)
            return value
    return None


def text_of_value(name: str, value: Any) -> str:
    """Format the value of a setting in one line, also of one that a script declared: "on", "20,000"."""
    if name in SPECS:
        return printable(value_text(SPECS[name], value))
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else printable(_text(value))


def _text(value: Any, *, has_separators: bool = True) -> str:
    return f"{value:,}" if has_separators and type(value) is int else clip(str(value), _LONGEST_VALUE)


_LONGEST_VALUE = 200
# Units that are words.
_OF_ONE = {"steps": "step", "batches": "batch", "tokens": "token"}


def value_text(spec: SettingSpec, value: Any) -> str:
    """Format a setting's value: "on", "none", "0.5 ms", "bf16"."""
    if value is None:
        return "none"
    if spec.kind is ValueKind.BOOL:
        return "on" if value else "off"
    # A log from elsewhere may contain any value.
    is_number = spec.kind is ValueKind.FLOAT and isinstance(value, int | float)
    text = f"{value:g}" if is_number else _text(value, has_separators=not spec.is_identifier)
    unit = _OF_ONE.get(spec.unit, spec.unit) if value == 1 else spec.unit
    return f"{text} {unit}" if unit else text


SPECS: Mapping[str, SettingSpec] = {name: _spec(name, info) for name, info in Settings.model_fields.items()}


def arguments_of(values: Mapping[str, Any]) -> list[str]:
    """Return the shell's arguments that set `values`, which are by setting."""
    return [word for name, value in values.items() for word in SPECS[name].arguments(value)]


def spec_of(name: str, declared: Collection[str] | None = None) -> SettingSpec:
    """Return the setting `name` (dashes count as underscores); raises SettingError with the nearest name,
    which may be one that a script has `declared` so far; None: it is not for the run of a script."""
    key = name.strip().replace("-", "_").lower()
    if key in SPECS:
        return SPECS[key]
    near = difflib.get_close_matches(key, [*(declared or ()), *SPECS], n=1)
    is_undeclared = declared is not None and not declared
    if near:
        hint = f"did you mean {near[0]!r}?"
        if is_undeclared:
            hint += " The script has declared none of its own yet."
    elif is_undeclared:
        hint = "the script has declared none of its own yet; `stepscope settings` lists all others."
    elif declared:
        hint = f"the script declares {', '.join(declared)} so far; `stepscope settings` lists all others."
    else:
        hint = "`stepscope settings` lists them all."
    raise SettingError(name, f"There is no setting {name!r}; {hint}")


def parse(values: Mapping[str, Any]) -> Settings:
    """Validate `values`; missing settings have their default. Raises SettingError."""
    for name in values:
        spec_of(name)
    try:
        return Settings(**{spec_of(name).name: value for name, value in values.items()})
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        raise SettingError(name, _sentence(SPECS[name], first["input"], first["msg"])) from None


def change(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Return a copy of `settings` with `changes` applied and validated. Raises SettingError."""
    return parse(settings.model_dump() | {spec_of(name).name: value for name, value in changes.items()})


def from_json(text: str) -> Settings:
    """Parse the output of `Settings.model_dump_json`. Raises SettingError, and ValueError for invalid
    JSON."""
    return parse(json_object(text))


@lru_cache(maxsize=1024)
def read_settings(text: str) -> Settings | None:
    """Parse the settings in a request or a log; None if this version cannot read them."""
    try:
        return from_json(text)
    except (SettingError, ValueError):
        return None


def change_title(values: Mapping[str, Any]) -> str:
    """Return a short title of values of settings: "AMP bf16, pinned on". Others are those of a script, or of
    another version."""
    return ", ".join(_title(name, value) for name, value in values.items())


def difference_title(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return a short title of changed values: "AMP off → bf16, batch 32 → 64"."""
    parts = []
    for name, value in after.items():
        label, text = _title_parts(name, value)
        parts.append(f"{label} {_title_parts(name, before.get(name))[1]} → {text}")
    return clip(printable(", ".join(parts)), 3 * _LONGEST_VALUE)


def _title(name: str, value: Any) -> str:
    label, text = _title_parts(name, value)
    return f"{label} {text}" if name in SPECS else clip(printable(f"{label} {text}"), _LONGEST_VALUE)


def _title_parts(name: str, value: Any) -> tuple[str, str]:
    if name in SPECS:
        return SPECS[name].short or SPECS[name].label, value_text(SPECS[name], value)
    return name, text_of_value(name, value)


def _sentence(spec: SettingSpec, value: Any, reason: str) -> str:
    allowed = spec.bounds
    if allowed:
        return f"{spec.name} cannot be {value!r}; allowed: {allowed}."
    return f"{spec.name} cannot be {value!r}: {reason[0].lower()}{reason[1:]}."


_TRUE = frozenset({"on", "true", "yes", "1"})
_FALSE = frozenset({"off", "false", "no", "0"})


def parse_text(name: str, text: str) -> Any:
    """Parse `text`, from a flag or the environment, as a value of the setting `name`.

    "none" and the empty string mean None when the setting is optional. Raises SettingError.
    """
    spec = spec_of(name)
    word = text.strip()
    if spec.optional and word.lower() in ("", "none"):
        return None
    if spec.kind is ValueKind.BOOL:
        if word.lower() in _TRUE:
            return True
        if word.lower() in _FALSE:
            return False
        raise SettingError(spec.name, _sentence(spec, text, "not a switch"))
    if spec.kind in (ValueKind.INT, ValueKind.FLOAT):
        try:
            return int(word.replace("_", "")) if spec.kind is ValueKind.INT else float(word)
        except ValueError:
            what = "a whole number" if spec.kind is ValueKind.INT else "a number"
            raise SettingError(
                spec.name, f"{spec.name} cannot be {text!r}: it takes {what}, {spec.bounds}."
            ) from None
    return word


_DEVICES = {
    DeviceKind.CPU: "the CPU",
    DeviceKind.CUDA: "a CUDA GPU",
    DeviceKind.XPU: "an Intel GPU",
    DeviceKind.MPS: "an Apple GPU",
}


def unavailable_reason(spec: SettingSpec, facts: DeviceFacts) -> str | None:
    """Return the reason that `spec` has no effect on this device, in one sentence, or None."""
    if facts.kind not in spec.devices:
        devices = " or ".join(words for kind, words in _DEVICES.items() if kind in spec.devices)
        needed = "a GPU" if facts.kind is DeviceKind.CPU else devices
        return f"{spec.label} needs {needed}; this run's device is {facts.name}."
    can = {
        Need.PINNED_MEMORY: facts.can_pin,
        Need.CACHE: facts.can_trim,
        Need.CAP: facts.can_cap,
        Need.COMPILER: facts.can_compile,
    }
    if spec.needs is not None and not can.get(spec.needs, True):
        return f"{spec.label} is not available on {facts.name} here; `stepscope doctor` says why."
    return None


def check_device(settings: Settings, facts: DeviceFacts, names: Iterable[str] = SPECS) -> None:
    """Raise SettingError for the first of `names` with a value that this device does not support."""
    for name in names:
        spec = SPECS[name]
        value = getattr(settings, name)
        reason = unavailable_reason(spec, facts)
        if reason is not None and value != spec.default:
            raise SettingError(name, reason)
        if name == "amp" and value not in facts.amp_modes:
            supported = ", ".join(facts.amp_modes)
            raise SettingError(
                name, f"amp cannot be {value.value!r} on {facts.name}; it supports: {supported}."
            )
