"""Every setting, model and data source declares what the rest of Stepscope needs to know of it."""

from typing import Any

import pytest

from harness.catalog import DATA, MODELS
from harness.device.testing.device import FAKE_FACTS
from harness.errors import SettingError
from harness.predict.answer import Target
from harness.predict.question import Question
from harness.records.run import DeviceFacts, DeviceKind
from harness.settings import Settings
from harness.settings.declaration import Effect, Need
from harness.settings.resolve import check_fit, no_effect_reason, resolve
from harness.settings.spec import SPECS, SettingSpec, ValueKind, change, unavailable_reason

ABLE = FAKE_FACTS._replace(can_pin=True, can_trim=True, can_cap=True, can_compile=True)
ABILITIES = {
    Need.PINNED_MEMORY: "can_pin",
    Need.CACHE: "can_trim",
    Need.CAP: "can_cap",
    Need.COMPILER: "can_compile",
}


def another(spec: SettingSpec, settings: Settings) -> Any:
    """A valid value of the setting other than the one in effect."""
    value = getattr(settings, spec.name)
    if spec.kind is ValueKind.BOOL:
        return not value
    if spec.kind is ValueKind.CHOICE:
        return next(choice for choice in spec.choices if choice != value)
    if spec.kind in (ValueKind.INT, ValueKind.FLOAT):
        return 2 if value is None else value + 1
    return {"model": "lstm", "preset": "workstation", "data": "synthetic", "profile_at": "100"}.get(
        spec.name, "/elsewhere"
    )


@pytest.mark.parametrize("spec", SPECS.values(), ids=list(SPECS))
def test_a_prediction_depends_on_what_says_so_and_on_nothing_else(spec: SettingSpec) -> None:
    target = Target(DeviceKind.CUDA, "a GPU")
    model = "lstm" if spec.needs is Need.TEXT else "resnet"
    data = "stdlib-text" if model == "lstm" else "images" if spec.needs is Need.FOLDER else "shapes"
    settings = resolve({"model": model, "data": data})
    changed = change(settings, {spec.name: another(spec, settings)})
    assert (Question.of(settings, target) != Question.of(changed, target)) is spec.affects_prediction


@pytest.mark.parametrize("spec", SPECS.values(), ids=list(SPECS))
def test_a_setting_is_unavailable_exactly_where_the_device_lacks_what_it_needs(spec: SettingSpec) -> None:
    able = ABLE if ABLE.kind in spec.devices else ABLE._replace(kind=min(spec.devices))
    assert unavailable_reason(spec, able) is None
    for need, ability in ABILITIES.items():
        lacking = DeviceFacts(**{**able._asdict(), ability: False})
        assert (unavailable_reason(spec, lacking) is not None) is (spec.needs is need)
    for kind in DeviceKind:
        if kind not in spec.devices:
            assert unavailable_reason(spec, ABLE._replace(kind=kind)) is not None


def test_what_a_model_cannot_do_is_refused_and_has_a_reason_in_the_form() -> None:
    refused = 0
    for trained in MODELS.values():
        for spec in SPECS.values():
            if spec.kind is not ValueKind.BOOL or no_effect_reason(spec, trained) is None:
                continue
            refused += 1
            settings = resolve({"model": trained.key, spec.name: True})
            with pytest.raises(SettingError, match=spec.name):
                check_fit(settings)
    assert refused > 0


@pytest.mark.parametrize("model", sorted(MODELS))
def test_a_model_of_the_catalog_has_no_learning_rate_factor(model: str) -> None:
    with pytest.raises(SettingError, match=r"learning_rate_factor does nothing for .* learning_rate instead"):
        check_fit(resolve({"model": model, "learning_rate_factor": 0.5}))


def test_live_settings_that_leave_the_peak_as_it_is() -> None:
    """Written out once more: a new setting must be looked at before an error is blamed on its change."""
    harmless = {
        spec.name for spec in SPECS.values() if not spec.affects_peak and not spec.affects_free_memory
    }
    assert {name for name in harmless if SPECS[name].effect is not Effect.NEW_RUN} == {
        "device_metrics",
        "hunt_leaks",
        "learning_rate",
        "learning_rate_factor",
        "max_seconds",
        "max_steps",
        "measure_overhead",
        "nvtx",
        "oom_policy",
        "oom_retries",
        "profile_at",
        "slow_loader_ms",
    }
    assert [spec.name for spec in SPECS.values() if spec.affects_free_memory] == ["memory_cap_gib"]


def test_shapes_belong_to_every_source() -> None:
    assert all(":" in spec.shape for spec in DATA.values())
