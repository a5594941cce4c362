"""With any input, settings survive the shell and the control file, and nothing else gets through."""

import json
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from harness.cli.arguments import parse_assignments
from harness.errors import UsageError
from harness.records.run import CommandKind, CommandRow
from harness.settings.resolve import resolve
from harness.settings.spec import SPECS, SettingSpec, ValueKind, parse
from harness.store.control import ControlLog
from harness.store.home import Home
from tests.examples import examples


def values_of(spec: SettingSpec) -> st.SearchStrategy[Any]:
    """Values that the setting allows."""
    low = spec.minimum if spec.minimum is not None else spec.above
    made: st.SearchStrategy[Any]
    match spec.kind:
        case ValueKind.BOOL:
            made = st.booleans()
        case ValueKind.CHOICE:
            made = st.sampled_from(spec.choices)
        case ValueKind.INT:
            made = st.integers(int(low or 0), int(spec.maximum or 2**62))
        case ValueKind.FLOAT:
            made = st.floats(low or 0, spec.maximum or 1e6, exclude_min=spec.above is not None)
        case ValueKind.TEXT:
            made = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=12).filter(
                lambda text: text.lower() != "none"
            )
    return st.none() | made if spec.optional else made


any_settings = st.fixed_dictionaries({}, optional={name: values_of(spec) for name, spec in SPECS.items()})


def as_typed(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return repr(value) if isinstance(value, float) else str(value)


@given(any_settings)
def test_settings_survive_the_command_line(chosen: Mapping[str, Any]) -> None:
    words = [f"{name.replace('_', '-')}={as_typed(value)}" for name, value in chosen.items()]
    read = {name.replace("-", "_"): value for name, value in parse_assignments(words).items()}
    assert parse(read) == parse(chosen)


@examples(0.3)
@given(any_settings)
def test_settings_survive_the_control_file(chosen: Mapping[str, Any]) -> None:
    sent = json.loads(parse(chosen).model_dump_json())
    command = CommandRow("id", 1, CommandKind.SET, json.dumps(sent), "test")
    with tempfile.TemporaryDirectory() as home:
        folder = Home(Path(home)).create("name", resolve({"model": "mlp"}), time.time_ns())
        with ControlLog(folder) as control:
            control.send(command)
            ((_, read),) = control.commands()
    assert parse(json.loads(read.payload)) == parse(chosen)


@given(st.lists(st.text(max_size=20) | st.builds("{}={}".format, st.sampled_from(list(SPECS)), st.text())))
def test_no_word_breaks_the_parser(words: list[str]) -> None:
    with suppress(UsageError):
        parse(parse_assignments(words))


@examples(0.5)
@given(st.text(max_size=60))
def test_a_name_is_refused_in_a_sentence_or_kept_and_found_again(name: str) -> None:
    with tempfile.TemporaryDirectory() as path:
        home = Home(Path(path))
        try:
            folder = home.create(name, resolve({"model": "mlp"}), time.time_ns())
        except UsageError:
            assert home.runs() == []
            return
        retained = folder.request().name
        assert retained.split() == name.split()
        assert home.find(retained) == folder
