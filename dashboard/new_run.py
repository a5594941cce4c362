"""The values of the form for a new run: its settings, the equivalent shell command, and the start."""

import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from dashboard import state
from dashboard.data import queue
from dashboard.data.doctor import doctor_run
from dashboard.data.own_models import check_offered
from dashboard.data.runs import supervisor
from dashboard.form import setting_value
from harness.catalog import ModelSpec, Preset, model
from harness.catalog.first_run import default_preset
from harness.catalog.own import is_own
from harness.errors import SettingError
from harness.records.run import DeviceFacts, DeviceKind
from harness.settings import Settings
from harness.settings.resolve import check_fit, no_effect_reason, resolve
from harness.settings.spec import SPECS, SettingSpec, check_device, unavailable_reason
from harness.store.folder import RunFolder

# Settings whose value is kept when another model is selected.
_MODEL_INDEPENDENT = frozenset({"model", "device"})
# Settings at the head of the form.
HEAD_SETTINGS = ("model", "preset", "data", "data_path", "device", "batch_size", "amp")


class Base(NamedTuple):
    """The default settings of a model at a size."""

    model: ModelSpec
    preset: Preset
    values: Mapping[str, Any]

    def key(self, name: str) -> str:
        """Return the key of the form's widget for the setting `name`."""
        if name in _MODEL_INDEPENDENT:
            return state.new_key(name)
        if name == "preset":
            return state.new_key(name, self.model.key)
        return state.new_key(name, f"{self.model.key}_{self.preset.name}")

    def unavailable_reason(self, spec: SettingSpec, facts: DeviceFacts | None) -> str | None:
        """Return why the setting has no effect for this model on this device; None if it has one."""
        reason = no_effect_reason(spec, self.model)
        return unavailable_reason(spec, facts) if reason is None and facts is not None else reason

    def form_values(self, facts: DeviceFacts | None) -> dict[str, Any]:
        """Return the value of every setting in the form: its widget's, the base's without a widget, or the
        default if the setting has no effect."""
        values = {}
        for name, spec in SPECS.items():
            key = self.key(name)
            if self.unavailable_reason(spec, facts) is not None:
                values[name] = spec.default
            else:
                values[name] = (
                    setting_value(spec, state.widget_value(key))
                    if state.has_widget(key)
                    else self.values[name]
                )
        return values


def default_size(model: ModelSpec, facts: DeviceFacts | None) -> str:
    """Return the size to begin with: of the default model the one that suits the device."""
    if model.key != SPECS["model"].default:
        return model.presets[0].name
    is_cpu = facts is None or facts.kind is DeviceKind.CPU
    return default_preset(model.key, None if facts is None or is_cpu else facts.memory_bytes)


def base(model: ModelSpec, preset: Preset) -> Base:
    """Return the form's base for a model at a size."""
    return Base(model, preset, _defaults(model.key, preset.name, model.default_data))


def _defaults(model: str, preset: str, data: str) -> Mapping[str, Any]:
    own_data = {"data": data} if is_own(model) else {}
    values: dict[str, Any] = resolve({"model": model, "preset": preset, **own_data}).model_dump(mode="json")
    return values


def command(values: Mapping[str, Any], name: str) -> str:
    """Return the shell command that starts the same run: settings that differ from the preset's."""
    words = ["stepscope", "run", values["model"]]
    base = _defaults(values["model"], values["preset"], values["data"])
    always = {"data"} if is_own(values["model"]) else set()
    if values["preset"] != next(iter(model(values["model"]).presets)).name:
        words += ["--preset", values["preset"]]
    for setting, spec in SPECS.items():
        value = values[setting]
        if setting in ("model", "preset") or (value == base[setting] and setting not in always):
            continue
        words += spec.arguments(value)
    if name:
        words += ["--name", name]
    return shlex.join(words)


def facts_of(selector: str) -> DeviceFacts | None:
    """Return the facts of the selected device; None if it is unknown or the machine is being checked."""
    report = doctor_run().report
    if report is None:
        return None
    facts = [device.facts for device in report.devices]
    if selector == "auto":
        gpus = [fact for fact in facts if fact.kind is not DeviceKind.CPU]
        return next(iter(gpus or facts), None)
    return next((fact for fact in facts if selector in (fact.torch_name, fact.uuid)), None)


def start(values: Mapping[str, Any], name: str) -> RunFolder:
    """Validate the settings and start the run; a form sent twice starts one run. Raises StepscopeError."""
    settings = validated_settings(values)
    return supervisor().start(name.strip() or None, settings, request_id=state.start_token())


def enqueue(values: Mapping[str, Any], name: str) -> None:
    """Validate the settings and add the run to the queue; a form sent twice adds one. Raises
    StepscopeError."""
    settings = validated_settings(values)
    queue.add(settings, name.strip() or None, request_id=state.start_token())
    state.renew_start_token()


def validated_settings(values: Mapping[str, Any]) -> Settings:
    """Return the validated settings of the form. Raises SettingError if no run can start with them."""
    for name, value in values.items():
        if value is None and not SPECS[name].optional:
            raise SettingError(name, f"{SPECS[name].label} is empty; allowed: {SPECS[name].bounds}.")
    check_offered(values["model"], values["data"])
    settings = resolve(values)
    check_fit(settings)
    facts = facts_of(settings.device)
    if facts is not None:
        check_device(settings, facts)
    return settings
