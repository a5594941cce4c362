"""Declarations of a script's own settings that neither the shell nor the page could show."""

import sqlite3
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepscope
from harness.attach.declaration import declare
from harness.errors import LogError
from harness.records.run import CommandKind
from harness.records.script import SettingKind
from harness.supervisor.commands import declared_settings
from tests.api_factories import SmallTraining, folder_of, send, watch

_CHOICE = "a choice is printable text of up to 100 letters"
_BOUNDS = "give two finite numbers, or None for no bound"


@pytest.mark.parametrize(
    ("default", "options", "message"),
    [
        ("\ud800", {"choices": ["\ud800"]}, rf"knob cannot have the choice '\ud800'; {_CHOICE}."),
        ("a\nb", {"choices": ["a\nb"]}, rf"knob cannot have the choice 'a\nb'; {_CHOICE}."),
        ("a", {"choices": ["a", "x" * 101]}, f"; {_CHOICE}."),
        ("a", {"choices": ["a", None]}, f"knob cannot have the choice None; {_CHOICE}."),
        (16, {"choices": [16, 32]}, f"knob cannot have the choice 16; {_CHOICE}, such as '16'."),
        ("a", {"choices": "ab"}, "knob cannot have the choices 'ab'; give a list of texts"),
        ("a", {"choices": 5}, "knob cannot have the choices 5; give a list of texts"),
        ("a", {"choices": []}, "knob cannot have the choices []; give a list of texts"),
        ("a", {"choices": ["a", "b", "a"]}, "knob cannot have the choice 'a' twice; give each one once."),
        (0.1, {"bounds": ("0", "1")}, f"knob cannot have the bounds ('0', '1'); {_BOUNDS}"),
        (0.1, {"bounds": (float("inf"), 1)}, f"knob cannot have the bounds (inf, 1); {_BOUNDS}"),
        (0.1, {"bounds": (0, 10**400)}, _BOUNDS),
        (0.1, {"bounds": (False, True)}, f"knob cannot have the bounds (False, True); {_BOUNDS}"),
        (0.1, {"bounds": 1}, f"knob cannot have the bounds 1; {_BOUNDS}"),
        (0.1, {"bounds": (0, 1, 2)}, f"knob cannot have the bounds (0, 1, 2); {_BOUNDS}"),
        (10**400, {}, "; it is a whole number."),
        (0.1, {"label": "x" * 101}, "; give printable text of up to 100 letters."),
        (0.1, {"label": "drop\nout"}, r"knob cannot have the label 'drop\nout'; give printable text"),
        (0.1, {"label": "\udfff"}, r"knob cannot have the label '\udfff'; give printable text"),
        (0.1, {"label": 5}, "knob cannot have the label 5; give printable text"),
    ],
)
def test_a_declaration_that_cannot_be_shown_is_refused_with_its_value(
    default: Any, options: dict[str, Any], message: str
) -> None:
    arguments = {"bounds": None, "choices": None, "label": None} | options
    with pytest.raises(ValueError) as raised:  # The message follows.
        declare("knob", default, **arguments)
    assert message in str(raised.value)


def test_bounds_of_numpy_and_choices_of_any_collection_are_taken() -> None:
    setting = declare("knob", 0.5, (np.float32(0.25), np.int64(1)), None, "Dropout of the head")  # type: ignore[arg-type]
    assert (setting.kind, setting.low, setting.high) == (SettingKind.FLOAT, 0.25, 1)
    assert [type(bound) for bound in (setting.low, setting.high)] == [float, int]
    assert declare("knob", "b", None, {"a": 1, "b": 2}, None).choices == ("a", "b")


def test_an_infinite_bound_is_none() -> None:
    setting = declare("knob", 0.5, (0, float("inf")), None, None)
    assert (setting.low, setting.high) == (0, None)
    assert declare("knob", 0.5, (-float("inf"), 1.0), None, None).low is None


def test_a_refused_declaration_leaves_the_others_within_reach(tmp_path: Path) -> None:
    with watch(SmallTraining(), tmp_path) as run:
        run.setting("good", 0.1, bounds=(0, 0.9))
        with pytest.raises(ValueError, match="cannot have the choice"):
            run.setting("mode", "\ud800", choices=["\ud800"])
    assert [setting.name for setting in declared_settings(folder_of(tmp_path))] == ["good"]


def test_declarations_that_cannot_be_read_are_no_missing_settings(tmp_path: Path) -> None:
    with watch(SmallTraining(), tmp_path) as run:
        run.setting("good", 0.1, bounds=(0, 0.9))
    with closing(sqlite3.connect(folder_of(tmp_path).log)) as connection, connection:
        connection.execute("""UPDATE declared_settings SET declaration = '{"label": "\\ud800"}'""")
    with pytest.raises(
        LogError, match=r"^The settings that the script declares cannot be read: .* is damaged"
    ):
        send(tmp_path, CommandKind.SET, good=0.3)
    send(tmp_path, CommandKind.SET, max_steps=5)


@pytest.mark.parametrize(
    ("default", "options", "kind", "plain"),
    [
        (np.int64(5), {}, SettingKind.INT, 5),
        (np.float32(0.5), {"bounds": (0, 1)}, SettingKind.FLOAT, 0.5),
        (np.longdouble(0.5), {}, SettingKind.FLOAT, 0.5),
        (Fraction(1, 2), {}, SettingKind.FLOAT, 0.5),
    ],
)
def test_a_number_of_another_kind_is_one_of_python(
    default: Any, options: dict[str, Any], kind: SettingKind, plain: float
) -> None:
    arguments = {"bounds": None, "choices": None, "label": None} | options
    declaration = declare("knob", default, **arguments)
    assert (declaration.kind, declaration.default) == (kind, plain)
    assert type(declaration.default) is type(plain)


def test_a_disabled_setting_has_the_same_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_DISABLED", "1")
    training = SmallTraining()
    run = stepscope.watch(training.model, training.optimizer)
    scale: Any = np.float32(0.5)
    values = [run.setting("scale", scale)(), run.setting("rate", 1, bounds=(0.5, 2))()]
    assert [(type(value), value) for value in values] == [(float, 0.5), (float, 1.0)]
