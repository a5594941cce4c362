"""`queue`: runs that start when a device is free for them."""

import argparse
import time
from argparse import Namespace
from collections.abc import Sequence

from harness import words
from harness.attach.launch import Script, origin_of
from harness.cli.arguments import settings_of
from harness.cli.parser import Parser, add_command
from harness.cli.script_words import split_at_script
from harness.cli.setting_flags import add_setting_flags
from harness.cli.shell import Shell
from harness.cli.starting import start_run
from harness.errors import UsageError
from harness.predict.asking import Predictor
from harness.queue.adding import add_model, add_script, ensure_worker
from harness.queue.files import queue_log
from harness.queue.listing import QueueLine, view_queue
from harness.queue.machine import ThisMachine
from harness.queue.placing import AUTO
from harness.queue.worker import QueueWorker
from harness.records.queue import QueueState

_WITH_VALUE = ("--home", "--name", "--device", "--on", "--retries")
_FLAGS = ("--force", "--json")
_USAGE = """stepscope queue add [--home FOLDER] [--name NAME] [--device DEVICE] SCRIPT.py [ARGUMENT ...]
       stepscope queue add [--home FOLDER] [--name NAME] [--device DEVICE] -m MODULE [ARGUMENT ...]
       stepscope queue add [OPTION ...] [MODEL]"""
_HEADINGS = ("", "ENTRY", "NAME", "MODEL", "DEVICE", "STATE", "WHY", "ADDED>")
_NO_ENTRY = "{!r} is no entry of the queue; it takes a number of `stepscope queue list`."


def add_commands(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the commands of this module."""
    summary = "start runs when a device is free for them"
    queue = commands.add_parser("queue", help=summary, description=summary, allow_abbrev=False)
    acts = queue.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    add = add_command(acts, "add", "add a run: the words after it are those of `run`", add_run, is_json=True)
    add.usage = _USAGE
    add.add_argument("model_word", metavar="MODEL", nargs="?", help="as --model")
    add.add_argument(
        "--name", help="name of the run (default: the model's key, or the script's, and a number)"
    )
    add.add_argument("--force", action="store_true", help="start it although it is predicted not to fit")
    add.add_argument(
        "--on", dest="engine", choices=["ray"], help="wait in the engine's own queue for another machine"
    )
    add.add_argument("--retries", metavar="N", type=int, default=0, help="as for `run`, with --on")
    add.set_defaults(nproc=1, detach=True)
    add_setting_flags(add)
    add_command(acts, "list", "what waits, and why", list_queue, is_json=True)
    remove = add_command(acts, "remove", "take entries out", remove_entries)
    remove.add_argument("entries", metavar="ENTRY", nargs="+")
    move = add_command(acts, "move", "move an entry to a position", move_entry)
    move.add_argument("entry", metavar="ENTRY")
    move.add_argument("position", metavar="POSITION", type=int, help="from 1")
    for name, text, function in (
        ("pause", "start nothing more, or not these", pause),
        ("resume", "start again what was paused or blocked", resume),
    ):
        command = add_command(acts, name, text, function)
        command.add_argument("entries", metavar="ENTRY", nargs="*", help="none: the whole queue")
        if name == "resume":
            command.add_argument(
                "--force", action="store_true", help="although the entries are predicted not to fit"
            )
    add_command(acts, "run", "be the worker, until nothing waits (it is started on demand)", run_worker)


def split_script(words: Sequence[str]) -> tuple[list[str], Script | None]:
    """Split the words of `stepscope queue add …` into those of Stepscope and the script with its arguments,
    which are the script's; None: they name no script."""
    is_add = list(words[:2]) == ["queue", "add"]
    return split_at_script(words, 2, _WITH_VALUE, _FLAGS) if is_add else (list(words), None)


def add_run(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope queue add`."""
    if arguments.engine is not None or arguments.retries:
        return start_run(arguments, shell)
    home = shell.home(arguments)
    script: Script | None = arguments.script
    if script is None:
        settings = settings_of(arguments, shell.environ)
        entry_id = add_model(home, settings, arguments.name, is_forced=arguments.force)
    else:
        script.check()
        device = arguments.device or AUTO
        entry_id = add_script(home, origin_of(script), arguments.name, device, is_forced=arguments.force)
    ensure_worker(home)
    lines = [line for line in view_queue(home).lines if line.entry_id == entry_id]
    position = lines[0].position if lines else None
    if arguments.is_json:
        shell.print_json({"entry_id": entry_id, "position": position})
    elif position is None:
        shell.print_line(f"Entry {entry_id} has started: stepscope list")
    else:
        shell.print_line(f"Entry {entry_id}, position {position} of the queue: stepscope queue list")
    return 0


def list_queue(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope queue list`."""
    home = shell.home(arguments)
    view = view_queue(home)
    if arguments.is_json:
        shell.print_json({"is_paused": view.is_paused, "entries": [line._asdict() for line in view.lines]})
        return 0
    if view.lines:
        shell.print_table(_HEADINGS, [_cells(line) for line in view.lines])
    else:
        shell.print_status(f"The queue of {home.path} is empty; add to it with `stepscope queue add`.")
    if view.is_paused:
        shell.print_status("The queue is paused; `stepscope queue resume` continues it.")
    elif view.needs_worker:
        shell.print_status("No worker is running; `stepscope queue run` starts what waits.")
    return 0


def _cells(line: QueueLine) -> tuple[str, ...]:
    return (
        str(line.position),
        str(line.entry_id),
        line.name or words.NOT_AVAILABLE,
        line.subject or words.NOT_AVAILABLE,
        line.device,
        f"{line.state.value}, forced" if line.is_forced else line.state.value,
        line.reason,
        words.ago(max(0.0, time.time() - line.added_unix_ns / 1e9)),
    )


def remove_entries(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope queue remove`."""
    log = queue_log(shell.home(arguments))
    for entry_id in map(_entry_id, arguments.entries):
        log.remove(entry_id)
        shell.print_line(f"Removed entry {entry_id}.")
    return 0


def move_entry(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope queue move`."""
    if arguments.position < 1:
        raise UsageError(f"There is no position {arguments.position}; the first is 1.")
    entry_id = _entry_id(arguments.entry)
    log = queue_log(shell.home(arguments))
    log.move(entry_id, arguments.position)
    position = next((row.position for row in log.entries() if row.entry_id == entry_id), None)
    shell.print_line(f"Entry {entry_id} is at position {words.count(position)}.")
    return 0


def pause(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope queue pause`."""
    home = shell.home(arguments)
    log = queue_log(home)
    if not arguments.entries:
        home.check_writable()
        log.pause(is_paused=True)
        shell.print_line("Nothing more starts; `stepscope queue resume` continues.")
    for entry_id in map(_entry_id, arguments.entries):
        log.set_state(entry_id, QueueState.PAUSED)
        shell.print_line(f"Paused entry {entry_id}.")
    return 0


def resume(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope queue resume`."""
    home = shell.home(arguments)
    log = queue_log(home)
    if not arguments.entries:
        if arguments.force:
            raise UsageError("--force is for entries: stepscope queue resume --force ENTRY")
        home.check_writable()
        log.pause(is_paused=False)
    for entry_id in map(_entry_id, arguments.entries):
        if arguments.force:
            log.force(entry_id)
        else:
            log.set_state(entry_id, QueueState.WAITING)
    ensure_worker(home)
    shell.print_line("Resumed.")
    return 0


def run_worker(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope queue run`."""
    home = shell.home(arguments)
    with (
        Predictor(home.path) as predictor,
        QueueWorker(shell.supervisor(arguments), ThisMachine(), predictor) as worker,
    ):
        if not worker.run():
            shell.print_status(f"Another process runs the queue of {home.path} already.")
    return 0


def _entry_id(word: str) -> int:
    if not word.isdecimal():
        raise UsageError(_NO_ENTRY.format(word))
    return int(word)
