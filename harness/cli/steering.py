"""`set`, `do`, `pause`, `resume`, `stop`, `delete`: actions on existing runs."""

import argparse
import math
import time
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from harness import words
from harness.cli.arguments import parse_assignments
from harness.cli.parser import Parser, add_command
from harness.cli.shell import RUN_HELP, Shell, find_run
from harness.errors import RunStateError, UsageError
from harness.records.run import AckRow, CommandKind, CommandState
from harness.store.folder import RunFolder
from harness.supervisor import EscalationStage, Supervisor

SOURCE = "shell"
_POLL_S = 0.05


def add_commands(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the commands of this module."""
    change = add_command(commands, "set", "change settings of a live run", set_settings, is_json=True)
    change.add_argument("run", metavar="RUN", help=RUN_HELP)
    change.add_argument("assignments", metavar="NAME=VALUE", nargs="+", help="see `stepscope settings`")
    _add_wait(change)
    do = add_command(commands, "do", "run an action once in a live run", do_once, is_json=True)
    do.add_argument("run", metavar="RUN", help=RUN_HELP)
    actions = [CommandKind.EMPTY_CACHE.value, CommandKind.SNAPSHOT.value, CommandKind.PROFILE.value]
    what = (
        "empty_cache: release cached memory now; snapshot: record the allocations of some steps; "
        "profile: record the operators and kernels of some steps"
    )
    do.add_argument("action", choices=actions, help=what)
    do.add_argument(
        "--steps",
        metavar="N",
        type=int,
        help="steps that a snapshot (1 to 50) or a profile (1 to 20) records; default 3",
    )
    for name, text in (("memory", "memory of operators"), ("stacks", "call stacks of operators")):
        do.add_argument(f"--{name}", action="store_true", help=f"also record {text} in a profile")
    _add_wait(do)
    for kind, text in (
        (CommandKind.PAUSE, "pause a run between two steps"),
        (CommandKind.RESUME, "resume a run"),
    ):
        command = add_command(commands, kind.value, text, pause_or_resume, is_json=True)
        command.add_argument("run", metavar="RUN", help=RUN_HELP)
        command.set_defaults(kind=kind)
        _add_wait(command)
    end = "stop a run after its step; forced if it does not respond"
    stop = add_command(commands, "stop", end, stop_run, is_json=True)
    stop.add_argument("run", metavar="RUN", help=RUN_HELP)
    stop.add_argument("--escalate", action="store_true", help=argparse.SUPPRESS)
    stop.add_argument("--undelivered", metavar="WHY", help=argparse.SUPPRESS)
    delete = add_command(commands, "delete", "delete ended runs permanently", delete_runs, is_json=True)
    delete.add_argument("runs", metavar="RUN", nargs="+", help=RUN_HELP)


def _add_wait(parser: Parser) -> None:
    parser.add_argument(
        "--wait", metavar="S", type=float, default=10.0, help="seconds to wait for the result (default 10)"
    )


def set_settings(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope set RUN name=value…`."""
    return _command(arguments, shell, CommandKind.SET, parse_assignments(arguments.assignments))


def do_once(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope do RUN empty_cache|snapshot|profile`."""
    kind = CommandKind(arguments.action)
    payload: dict[str, Any] = {}
    if arguments.steps is not None:
        if kind is CommandKind.EMPTY_CACHE:
            arguments.parser.error(f"--steps is for snapshots and profiles; {kind.value} records none")
        payload["steps"] = arguments.steps
    for name in ("memory", "stacks"):
        if getattr(arguments, name):
            if kind is not CommandKind.PROFILE:
                arguments.parser.error(f"--{name} is for profiles; {kind.value} records none")
            payload[name] = True
    return _command(arguments, shell, kind, payload)


def pause_or_resume(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope pause RUN` or `stepscope resume RUN`."""
    return _command(arguments, shell, arguments.kind, {})


def _command(arguments: Namespace, shell: Shell, kind: CommandKind, payload: Mapping[str, Any]) -> int:
    if not 0 <= arguments.wait < math.inf:
        raise UsageError(f"--wait cannot be {arguments.wait:g}; it takes a number of seconds, 0 or more.")
    supervisor = shell.supervisor(arguments)
    folder = find_run(supervisor.home, arguments.run)
    command_id = supervisor.send(folder, kind, payload, source=SOURCE)
    result = _wait_for_result(supervisor, folder, command_id, arguments.wait)
    if arguments.is_json:
        state = CommandState.QUEUED if result is None else result.state
        shell.print_json(
            {
                "command_id": command_id,
                "state": state,
                "step": None if result is None else result.step,
                "message": "" if result is None else result.message,
            }
        )
    elif result is None:
        shell.print_status(
            f"Queued; no result within {arguments.wait:g} s, see `stepscope show {folder.run_id}`."
        )
    elif result.state == CommandState.APPLIED:
        shell.print_line(f"applied at step {words.count(result.step)}: {result.message}")
    else:
        shell.print_status(f"{result.state.replace('_', ' ')}: {result.message}")
    is_good = result.state == CommandState.APPLIED if result is not None else arguments.wait <= 0
    return 0 if is_good else 1


def _wait_for_result(
    supervisor: Supervisor, folder: RunFolder, command_id: str, wait_s: float
) -> AckRow | None:
    """Wait for the result of a command; None if there is none in time or before the run ends."""
    deadline_s = time.monotonic() + wait_s
    while True:
        result = supervisor.answer(folder, command_id)
        if result is not None or time.monotonic() >= deadline_s:
            return result
        if supervisor.status(folder).state.is_over:
            return supervisor.answer(folder, command_id)
        time.sleep(_POLL_S)


def stop_run(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope stop RUN`; with --escalate another process has requested the stop, or, with
    --undelivered, could not send it to the run."""
    supervisor = shell.supervisor(arguments)
    folder = find_run(supervisor.home, arguments.run)
    if arguments.escalate:
        stage = supervisor.escalation(folder, undelivered=arguments.undelivered).run(time.sleep)
    else:
        stage = supervisor.stop(folder, SOURCE, announce=shell.print_status)
    match stage:
        case EscalationStage.CAUGHT if not arguments.escalate:
            raise RunStateError(
                f"Run {folder.run_id} goes on: its script caught the KeyboardInterrupt of the stop. Stop it "
                "again: if it catches that too, its process is terminated."
            )
        case EscalationStage.UNKILLABLE:
            raise RunStateError(
                f"Run {folder.run_id} does not end even on SIGKILL: it hangs in the kernel, in a driver or "
                "on a disk. See `dmesg`; a reboot may be needed."
            )
        case EscalationStage.UNREACHABLE:
            raise RunStateError(
                f"Run {folder.run_id} cannot be reached by signals: it is in another container or on another "
                "machine; stop it there."
            )
    if not arguments.escalate:
        status = supervisor.status(folder)
        if arguments.is_json:
            result = {"run_id": folder.run_id, "state": status.state.value, "message": status.message}
            shell.print_json(result)
        else:
            shell.print_line(status.message)
    return 0


def delete_runs(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope delete RUN…`; all runs are looked up before the first is deleted."""
    supervisor = shell.supervisor(arguments)
    folders = [find_run(supervisor.home, key) for key in arguments.runs]
    for folder in dict.fromkeys(folders):
        name = folder.request().name
        supervisor.delete(folder)
        if not arguments.is_json:
            shell.print_line(f"Deleted {name} ({folder.run_id}).")
    if arguments.is_json:
        shell.print_json({"deleted": [folder.run_id for folder in dict.fromkeys(folders)]})
    return 0
