"""`advise`: suggestions for a run, each with its evidence."""

import argparse
from argparse import Namespace
from typing import Any

from harness import words
from harness.analysis.advice import Suggestion, suggest
from harness.cli.parser import Parser, add_command
from harness.cli.shell import Shell, find_run
from harness.config import SPECS, value_text
from harness.errors import LogError
from harness.records import CommandRow
from harness.store.control import ControlLog
from harness.store.folder import RunFolder
from harness.store.reader import LogReader
from harness.supervisor.advising import read_known
from harness.supervisor.summary import read_device


def add_commands(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the commands of this module."""
    advise = add_command(
        commands, "advise", "suggest changes to a run, with evidence", advise_run, is_json=True
    )
    run_help = "id, name, an unambiguous beginning, or 'latest' (default)"
    advise.add_argument("run", metavar="RUN", nargs="?", default="latest", help=run_help)


def advise_run(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope advise RUN`."""
    supervisor = shell.supervisor(arguments)
    folder = find_run(supervisor.home, arguments.run)
    with LogReader(folder.log) as reader:
        known = read_known(reader, read_device(reader.run().device), _commands(folder))
    found = [] if known is None else suggest(known)
    is_live = not supervisor.status(folder).state.is_over
    if arguments.is_json:
        shell.print_json([_json(told, folder, is_live) for told in found])
    elif not found:
        steps = 0 if known is None else len(known.settled)
        shell.say(f"No advice: nothing stands out in the last {words.plural(steps, 'steady-state step')}.")
    else:
        for number, told in enumerate(found, 1):
            _say(shell, number, told, command(told, folder.run_id, is_live), is_live)
    return 0


def command(told: Suggestion, run_id: str, is_live: bool) -> str:
    """Return how to apply it in the shell: a command for a live run, flags for the next one; empty without
    a change of settings."""
    if not told.change:
        return ""
    if is_live:
        assignments = " ".join(f"{name}={_value(name, value)}" for name, value in told.change.items())
        return f"stepscope set {run_id} {assignments}"
    return " ".join(_flag(name, value) for name, value in told.change.items())


def _flag(name: str, value: Any) -> str:
    spec = SPECS[name]
    if value is True:
        return spec.flag
    return spec.flag.replace("--", "--no-", 1) if value is False else f"{spec.flag} {value}"


def _value(name: str, value: Any) -> str:
    return value_text(SPECS[name]._replace(unit=""), value)


def _say(shell: Shell, number: int, told: Suggestion, how: str, is_live: bool) -> None:
    shell.say(f"{number}. {told.title}: {told.gain.sentence}.")
    shell.say(f"   {told.evidence}")
    span = f"{words.count(told.first_step)} to {words.count(told.last_step)}"
    details = "; ".join(f"{name}: {value}" for name, value in told.details)
    shell.say(f"   Steps {span}. {details}.")
    shell.say(f"   Why: {told.why}")
    if how:
        shell.say(f"   {'Do' if is_live else 'In the next run'}: {how}")
    if told.by_hand:
        shell.say(f"   By hand: {told.by_hand}")


def _json(told: Suggestion, folder: RunFolder, is_live: bool) -> dict[str, Any]:
    more = {"gain": told.gain._asdict(), "details": [list(pair) for pair in told.details]}
    return told._asdict() | more | {"command": command(told, folder.run_id, is_live)}


def _commands(folder: RunFolder) -> list[CommandRow]:
    try:
        with ControlLog(folder) as control:
            return [row for _, row in control.commands()]
    except LogError:
        return []
