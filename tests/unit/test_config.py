"""Settings come in as text, JSON or changes, and every bad value gets one sentence."""

import pytest

from harness.errors import SettingError
from harness.records.run import AmpMode, DeviceFacts, DeviceKind
from harness.settings import Settings
from harness.settings.declaration import Effect
from harness.settings.spec import (
    SPECS,
    ValueKind,
    change,
    check_device,
    from_json,
    parse,
    parse_text,
    spec_of,
    unavailable_reason,
)


def facts(kind: DeviceKind = DeviceKind.CPU, **changes: object) -> DeviceFacts:
    plain = DeviceFacts(
        kind=kind,
        ordinal=None if kind is DeviceKind.CPU else 0,
        uuid=None,
        name="a processor" if kind is DeviceKind.CPU else "a GPU",
        memory_bytes=None,
        capability=None,
        multiprocessors=None,
        power_limit_w=None,
        amp_modes=(AmpMode.OFF, AmpMode.BF16) if kind is DeviceKind.CPU else tuple(AmpMode),
        can_pin=kind is DeviceKind.CUDA,
        can_trim=True,
        can_cap=True,
        can_compile=True,
    )
    return plain._replace(**changes)  # type: ignore[arg-type]  # the caller names fields


def test_every_setting_has_a_help_a_label_and_a_group() -> None:
    assert all(spec.help.endswith(".") and spec.label and spec.group for spec in SPECS.values())


def test_a_default_is_a_value_the_setting_allows() -> None:
    assert parse({}) == Settings()


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"batch_size": 0}, "batch_size cannot be 0; allowed: at least 1, at most 65,536."),
        ({"batch_size": 1.5}, "batch_size cannot be 1.5; allowed: at least 1, at most 65,536."),
        ({"amp": "fp8"}, "amp cannot be 'fp8'; allowed: off, bf16, fp16."),
        ({"memory_cap_gib": -1}, "memory_cap_gib cannot be -1; allowed: above 0, at most 100,000."),
        ({"learning_rate": float("nan")}, "learning_rate cannot be nan; allowed: above 0, at most 1,000."),
        ({"learning_rate": float("inf")}, "learning_rate cannot be inf; allowed: above 0, at most 1,000."),
        ({"batchsize": 1}, "There is no setting 'batchsize'; did you mean 'batch_size'?"),
        ({"zzz": 1}, "There is no setting 'zzz'; `stepscope settings` lists them all."),
    ],
)
def test_a_bad_value_is_refused_with_the_value_and_what_is_allowed(
    values: dict[str, object], sentence: str
) -> None:
    with pytest.raises(SettingError) as caught:
        parse(values)
    assert str(caught.value) == sentence


def test_dashes_are_read_as_underscores() -> None:
    assert spec_of("batch-size").name == "batch_size"
    assert parse({"batch-size": 8}).batch_size == 8


@pytest.mark.parametrize("word", ["on", "true", "YES", "1"])
def test_a_switch_understands_yes(word: str) -> None:
    assert parse_text("pin_memory", word) is True


@pytest.mark.parametrize("word", ["off", "false", "No", "0"])
def test_a_switch_understands_no(word: str) -> None:
    assert parse_text("pin_memory", word) is False


@pytest.mark.parametrize(
    ("name", "text"), [("pin_memory", "maybe"), ("batch_size", "many"), ("learning_rate", "fast")]
)
def test_text_that_means_nothing_is_refused_by_name_and_value(name: str, text: str) -> None:
    with pytest.raises(SettingError, match=f"{name} cannot be '{text}'"):
        parse_text(name, text)


def test_none_clears_an_optional_setting_and_no_other() -> None:
    assert parse_text("max_steps", "none") is None
    with pytest.raises(SettingError):
        parse_text("batch_size", "none")


def test_settings_survive_json() -> None:
    settings = parse({"amp": "bf16", "learning_rate": 3e-4, "max_steps": 7})
    assert from_json(settings.model_dump_json()) == settings


def test_a_change_is_validated_as_a_whole_and_leaves_the_old_settings_alone() -> None:
    before = Settings()
    with pytest.raises(SettingError):
        change(before, {"batch_size": 8, "amp": "fp8"})
    assert before == Settings()
    assert change(before, {"batch-size": 8}).batch_size == 8


def test_fp16_is_refused_where_the_device_cannot_do_it() -> None:
    with pytest.raises(SettingError, match=r"amp cannot be 'fp16' on a processor; it supports: off, bf16\."):
        check_device(parse({"amp": "fp16"}), facts())


def test_a_gpu_setting_is_refused_on_the_cpu_only_when_it_is_used() -> None:
    check_device(Settings(), facts())
    with pytest.raises(SettingError, match="Pinned memory needs a GPU"):
        check_device(parse({"pin_memory": True}), facts())
    check_device(parse({"pin_memory": True}), facts(DeviceKind.CUDA))


def test_what_a_device_lacks_is_unavailable_with_a_reason() -> None:
    spec = SPECS["memory_cap_gib"]
    assert unavailable_reason(spec, facts()) is None
    assert "not available" in (unavailable_reason(spec, facts(can_cap=False)) or "")


def test_the_settings_the_issue_calls_live_are_live() -> None:
    for name in ("amp", "batch_size", "pin_memory", "empty_cache_every"):
        assert SPECS[name].is_live
    assert not SPECS["model"].is_live
    assert SPECS["batch_size"].effect is Effect.LOADER
    assert SPECS["amp"].kind is ValueKind.CHOICE
