"""`models`: the models of the catalog, and a person's own, which `--add` registers for the dashboard."""

import argparse
import ast
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from harness import words
from harness.catalog import MODELS, ModelSpec, data
from harness.catalog.own import absolute_key, own_model, parse_own
from harness.catalog.own_code import enumerated
from harness.cli.parser import Parser, add_command
from harness.cli.shell import Shell
from harness.errors import SettingError, UsageError
from harness.store.own_models import OwnEntry, add_own_model, read_own_models, remove_own_model


def add_commands(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the commands of this module."""
    summary = "the models and their sizes, and your own"
    models = add_command(commands, "models", summary, list_models, is_json=True)
    change = models.add_mutually_exclusive_group()
    change.add_argument(
        "--add", metavar="FILE.py:FUNCTION", help="offer a model of your own in the dashboard"
    )
    change.add_argument("--remove", metavar="FILE.py:FUNCTION", help="offer it no longer")
    models.add_argument("--data", metavar="FILE.py:DATASET", help="the dataset of --add, or a data source")


def list_models(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope models`."""
    home = shell.home(arguments)
    if arguments.data is not None and arguments.add is None:
        raise UsageError("--data is for --add; to train on it: stepscope run MODEL --data FILE.py:DATASET")
    if arguments.add is not None:
        entry = _entry(arguments.add, arguments.data)
        add_own_model(home, entry)
        shell.print_line(f"The dashboard offers {entry.model} on {entry.data}.")
        return 0
    if arguments.remove is not None:
        own = parse_own(arguments.remove)
        key = arguments.remove if own is None else own.absolute().key
        remove_own_model(home, key)
        shell.print_line(f"The dashboard offers {key} no longer.")
        return 0
    _print(shell, read_own_models(home), is_json=arguments.is_json)
    return 0


def _print(shell: Shell, own: list[OwnEntry], *, is_json: bool) -> None:
    specs = [(spec, spec.default_data) for spec in MODELS.values()]
    specs += [(spec, entry.data) for entry in own if (spec := own_model(entry.model)) is not None]
    if is_json:
        shell.print_json([_model_json(spec, source) for spec, source in specs])
        return
    rows = [
        (spec.key, preset.name, words.count(preset.parameters), source, spec.missing or preset.scale)
        for spec, source in specs
        for preset in spec.presets
    ]
    shell.print_table(("MODEL", "SIZE", "PARAMETERS>", "DATA", ""), rows)


def _entry(model_word: str, data_word: str | None) -> OwnEntry:
    """Return the entry of a model and its dataset. Raises UsageError when a file lacks them."""
    if parse_own(model_word) is None:
        raise SettingError("model", f"{model_word!r} is no function of a file, such as my_model.py:build.")
    if data_word is None:
        raise UsageError(
            "A model of your own needs samples: add --data my_data.py:dataset, or a data source."
        )
    entry = OwnEntry(absolute_key("model", model_word), absolute_key("data", data_word))
    if parse_own(entry.data) is None and data(entry.data).kind is None:
        raise SettingError("data", f"{entry.data!r} does not know the shape of its samples; name a dataset.")
    for setting, key in zip(OwnEntry._fields, entry, strict=True):
        _check_defined(setting, key)
    return entry


def _check_defined(setting: str, key: str) -> None:
    """Raise SettingError when the file does not define the attribute. The file is parsed, not imported."""
    own = parse_own(key)
    if own is None:
        return
    try:
        tree = ast.parse(own.file.read_bytes(), str(own.file))
    except (OSError, SyntaxError, ValueError) as error:
        raise SettingError(setting, f"{own.file} cannot be read as Python: {error}.") from None
    names = sorted(set(_names(tree)))
    if own.attribute not in names and "*" not in names:
        raise SettingError(setting, f"{own.file} has no {own.attribute!r}; it defines {enumerated(names)}.")


def _names(node: ast.AST) -> Iterator[str]:
    """Yield the names that the top level of a module defines, and "*" where it imports all of another's."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.ImportFrom(names=aliases):
                yield from (alias.asname or alias.name for alias in aliases)
            case ast.stmt() | ast.ExceptHandler() | ast.withitem() | ast.Tuple():
                yield from _names(child)


def _model_json(spec: ModelSpec, source: str) -> dict[str, Any]:
    presets = [_named(preset._asdict()) for preset in spec.presets]
    return spec._asdict() | {"default_data": source, "missing": spec.missing, "presets": presets}


def _named(preset: dict[str, Any]) -> dict[str, Any]:
    return {k: v._asdict() if hasattr(v, "_asdict") else v for k, v in preset.items()}
