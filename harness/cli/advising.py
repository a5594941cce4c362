"""`advise`: suggestions for a run, each with its evidence."""

import argparse
import shlex
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from harness import words
from harness.analysis.advice import Suggestion, suggest, with_code_alone
from harness.cli.measuring import measurements_of
from harness.cli.parser import Parser, add_command
from harness.cli.shell import Shell, find_run
from harness.errors import LogError
from harness.records.run import CommandRow
from harness.settings.spec import SPECS, arguments_of, value_text
from harness.store.control import ControlLog
from harness.store.folder import RunFolder
from harness.store.reader import LogReader
from harness.supervisor.advising import read_evidence
from harness.supervisor.measuring import Measurement, measured_effect, measurement_json
from harness.supervisor.stored_json import read_device


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
    is_live = not supervisor.status(folder).state.is_over
    measurements = measurements_of(folder, not is_live)
    with LogReader(folder.log) as reader:
        device = read_device(reader.run().device)
        evidence = read_evidence(reader, device, _commands(folder), measured=measurements)
    suggestions = [] if evidence is None else suggest(evidence)
    is_script = folder.request().script is not None
    if is_script and not is_live:
        suggestions = [with_code_alone(suggestion) for suggestion in suggestions]
    if arguments.is_json:
        shell.print_json([_json(suggestion, folder, is_live, measurements) for suggestion in suggestions])
    elif not suggestions:
        steps = 0 if evidence is None else len(evidence.settled)
        shell.print_line(f"No advice: {_no_advice(steps)}")
    else:
        for number, suggestion in enumerate(suggestions, 1):
            how = command(suggestion, folder.run_id, is_live)
            _print(shell, number, suggestion, how, is_live, measured_effect(measurements, suggestion.change))
    return 0


def _no_advice(steps: int) -> str:
    if steps == 0:
        return "it takes steady-state steps, and there are none."
    return f"nothing stands out in the last {words.plural(steps, 'steady-state step')}."


def command(suggestion: Suggestion, run_id: str, is_live: bool) -> str:
    """Return how to apply it in the shell: a command for a live run, flags for the next one; empty without
    a change of settings."""
    if not suggestion.change:
        return ""
    if is_live:
        assignments = " ".join(f"{name}={_value(name, value)}" for name, value in suggestion.change.items())
        return f"stepscope set {run_id} {assignments}"
    return shlex.join(arguments_of(suggestion.change))


def _value(name: str, value: Any) -> str:
    # Without separators of thousands: it is typed.
    return str(value) if type(value) is int else value_text(SPECS[name]._replace(unit=""), value)


def _print(
    shell: Shell,
    number: int,
    suggestion: Suggestion,
    how: str,
    is_live: bool,
    measurement: Measurement | None,
) -> None:
    shell.print_line(f"{number}. {suggestion.title}: {suggestion.gain.sentence}.")
    shell.print_line(f"   {suggestion.evidence}")
    steps = words.step_range(suggestion.first_step, suggestion.last_step).capitalize()
    details = "; ".join(f"{name}: {value}" for name, value in suggestion.details)
    shell.print_line(f"   {steps}. {details}.")
    shell.print_line(f"   Why: {suggestion.why}")
    if how:
        shell.print_line(f"   {'Do' if is_live else 'In the next run'}: {how}")
    if how and is_live:
        shell.print_line(f"   Try: {how.replace(' set ', ' measure ', 1)} --keep-if-better")
    if measurement is not None:
        shell.print_line(f"   Measured {measurement.title}: {measurement.sentence}")
    for line in suggestion.code.splitlines():
        shell.print_line(f"   In the script: {line}")
    if suggestion.by_hand:
        shell.print_line(f"   By hand: {suggestion.by_hand}")


def _json(
    suggestion: Suggestion, folder: RunFolder, is_live: bool, measurements: Sequence[Measurement]
) -> dict[str, Any]:
    measurement = measured_effect(measurements, suggestion.change)
    measured = {"measured": None if measurement is None else measurement_json(measurement)}
    more = {"gain": suggestion.gain._asdict(), "details": [list(pair) for pair in suggestion.details]}
    return suggestion._asdict() | more | measured | {"command": command(suggestion, folder.run_id, is_live)}


def _commands(folder: RunFolder) -> list[CommandRow]:
    try:
        with ControlLog(folder) as control:
            return control.newest_commands()
    except LogError:
        return []
