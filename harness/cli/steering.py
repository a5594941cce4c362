"""`set`, `do`, `pause`, `resume`, `stop`, `delete`: acting on runs that exist."""

import argparse
import time
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from harness import words
from harness.cli.choosing import parse_assignments
from harness.cli.parser import Parser, add_command
from harness.cli.shell import Shell, find_run
from harness.errors import RunStateError
from harness.records import AckRow, CommandKind, CommandState
from harness.store.folder import RunFolder
from harness.supervisor import Stage, Supervisor

SOURCE = "shell"
_POLL_S = 0.05
_RUN_HELP = "id, name, an unambiguous beginning, or 'latest'"


def add_commands(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add this family's commands."""
    change = add_command(commands, "set", "change settings while a run goes on", set_settings, is_json=True)
    change.add_argument("run", metavar="RUN", help=_RUN_HELP)
    change.add_argument("assignments", metavar="NAME=VALUE", nargs="+", help="see `stepscope settings`")
    _add_wait(change)
    do = add_command(commands, "do", "do something once in a live run", do_once, is_json=True)
    do.add_argument("run", metavar="RUN", help=_RUN_HELP)
    actions = [CommandKind.EMPTY_CACHE.value, CommandKind.SNAPSHOT.value, CommandKind.PROFILE.value]
    what = (
        "empty_cache: give cached memory back now; snapshot: follow some steps' allocations; "
        "profile: which operators and kernels some steps spend their time in"
    )
    do.add_argument("action", choices=actions, help=what)
    do.add_argument(
        "--steps",
        metavar="N",
        type=int,
        help="steps that a snapshot follows (1 to 50) or a profile takes (1 to 20); default 3",
    )
    for name, text in (("memory", "what operators allocate"), ("stacks", "the lines that call operators")):
        do.add_argument(f"--{name}", action="store_true", help=f"let a profile record {text} too")
    _add_wait(do)
    for kind, text in ((CommandKind.PAUSE, "hold a run between two steps"), (CommandKind.RESUME, "go on")):
        command = add_command(commands, kind.value, text, pause_or_resume, is_json=True)
        command.add_argument("run", metavar="RUN", help=_RUN_HELP)
        command.set_defaults(kind=kind)
        _add_wait(command)
    end = "end a run after its step; forced when it does not answer"
    stop = add_command(commands, "stop", end, stop_run, is_json=True)
    stop.add_argument("run", metavar="RUN", help=_RUN_HELP)
    stop.add_argument("--escalate", action="store_true", help=argparse.SUPPRESS)
    stop.add_argument("--undelivered", metavar="WHY", help=argparse.SUPPRESS)
    delete = add_command(commands, "delete", "delete ended runs for good", delete_runs, is_json=True)
    delete.add_argument("runs", metavar="RUN", nargs="+", help=_RUN_HELP)


def _add_wait(parser: Parser) -> None:
    parser.add_argument(
        "--wait", metavar="S", type=float, default=10.0, help="seconds to wait for the answer (default 10)"
    )


def set_settings(arguments: Namespace, shell: Shell) -> int:
    """`stepscope set RUN name=value…`."""
    return _command(arguments, shell, CommandKind.SET, parse_assignments(arguments.assignments))


def do_once(arguments: Namespace, shell: Shell) -> int:
    """`stepscope do RUN empty_cache`, `stepscope do RUN snapshot`, `stepscope do RUN profile`."""
    kind = CommandKind(arguments.action)
    payload: dict[str, Any] = {}
    if arguments.steps is not None:
        if kind is CommandKind.EMPTY_CACHE:
            arguments.parser.error(f"--steps is for snapshots and profiles; {kind.value} follows none")
        payload["steps"] = arguments.steps
    for name in ("memory", "stacks"):
        if getattr(arguments, name):
            if kind is not CommandKind.PROFILE:
                arguments.parser.error(f"--{name} is for profiles; {kind.value} records none")
            payload[name] = True
    return _command(arguments, shell, kind, payload)


def pause_or_resume(arguments: Namespace, shell: Shell) -> int:
    """`stepscope pause RUN` and `stepscope resume RUN`."""
    return _command(arguments, shell, arguments.kind, {})


def _command(arguments: Namespace, shell: Shell, kind: CommandKind, payload: Mapping[str, Any]) -> int:
    supervisor = shell.supervisor(arguments)
    folder = find_run(supervisor.home, arguments.run)
    command_id = supervisor.send(folder, kind, payload, source=SOURCE)
    answer = _wait_for(supervisor, folder, command_id, arguments.wait)
    if arguments.is_json:
        state = CommandState.QUEUED if answer is None else answer.state
        shell.print_json(
            {
                "command_id": command_id,
                "state": state,
                "step": None if answer is None else answer.step,
                "message": "" if answer is None else answer.message,
            }
        )
    elif answer is None:
        shell.complain(
            f"Queued, but not answered within {arguments.wait:g} s; see `stepscope show {folder.run_id}`."
        )
    elif answer.state == CommandState.APPLIED:
        shell.say(f"applied at step {words.count(answer.step)}: {answer.message}")
    else:
        shell.complain(f"{answer.state.replace('_', ' ')}: {answer.message}")
    is_good = answer.state == CommandState.APPLIED if answer is not None else arguments.wait <= 0
    return 0 if is_good else 1


def _wait_for(supervisor: Supervisor, folder: RunFolder, command_id: str, wait_s: float) -> AckRow | None:
    """The run's answer; None when it gives none in time or ends first."""
    deadline_s = time.monotonic() + wait_s
    while True:
        answer = supervisor.answer(folder, command_id)
        if answer is not None or time.monotonic() >= deadline_s:
            return answer
        if supervisor.status(folder).state.is_over:
            return supervisor.answer(folder, command_id)
        time.sleep(_POLL_S)


def stop_run(arguments: Namespace, shell: Shell) -> int:
    """`stepscope stop RUN`; with --escalate the stop has been requested by another process, or, with
    --undelivered, could not be sent to the run."""
    supervisor = shell.supervisor(arguments)
    folder = find_run(supervisor.home, arguments.run)
    if arguments.escalate:
        stage = supervisor.escalation(folder, undelivered=arguments.undelivered).run(time.sleep)
    else:
        stage = supervisor.stop(folder, SOURCE, tell=shell.complain)
    match stage:
        case Stage.UNKILLABLE:
            raise RunStateError(
                f"Run {folder.run_id} does not end even on SIGKILL: it hangs in the kernel, in a driver or "
                "on a disk; see `dmesg`, a reboot may be needed."
            )
        case Stage.UNREACHABLE:
            raise RunStateError(
                f"Run {folder.run_id} lives where no signal from here gets to, in another container or on "
                "another machine; stop it there."
            )
    if not arguments.escalate:
        status = supervisor.status(folder)
        if arguments.is_json:
            told = {"run_id": folder.run_id, "state": status.state.value, "message": status.message}
            shell.print_json(told)
        else:
            shell.say(status.message)
    return 0


def delete_runs(arguments: Namespace, shell: Shell) -> int:
    """`stepscope delete RUN…`; all are looked up before the first is deleted."""
    supervisor = shell.supervisor(arguments)
    folders = [find_run(supervisor.home, key) for key in arguments.runs]
    for folder in dict.fromkeys(folders):
        name = folder.request().name
        supervisor.delete(folder)
        if not arguments.is_json:
            shell.say(f"Deleted {name} ({folder.run_id}).")
    if arguments.is_json:
        shell.print_json({"deleted": [folder.run_id for folder in dict.fromkeys(folders)]})
    return 0
