"""`run`, and the training process `_run` that it starts."""

import argparse
import gc
import os
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from harness.attach.launch import Script, origin_of
from harness.cli.arguments import settings_of
from harness.cli.listing import summary_json
from harness.cli.parser import Parser, add_command
from harness.cli.progress import RunFollower
from harness.cli.ranks import check_ranks
from harness.cli.script_words import is_script
from harness.cli.setting_flags import add_setting_flags
from harness.cli.shell import Shell
from harness.errors import INTERRUPTED_CODE, OUT_OF_MEMORY_CODE, SettingError, UsageError
from harness.ranks.place import read_place
from harness.records.ranks import RankPart, RankPlace
from harness.records.remote import RemoteRequest
from harness.records.run import RunState
from harness.settings import Settings
from harness.settings.resolve import check_processes
from harness.store.control import ControlLog
from harness.store.folder import RunFolder
from harness.supervisor import Supervisor
from harness.supervisor.launch import training_command

_END_S = 5.0
_POLL_S = 0.05
_USAGE = """stepscope run [--home FOLDER] [--name NAME] [--nproc N] SCRIPT.py [ARGUMENT ...]
       stepscope run [--home FOLDER] [--name NAME] [--nproc N] -m MODULE [ARGUMENT ...]
       stepscope run --on ray [--home FOLDER] [--name NAME] [--retries N] [--detach] SCRIPT.py [ARGUMENT ...]
       stepscope run [OPTION ...] [MODEL]"""
_DESCRIPTION = (
    "Watch a script of your own: what follows SCRIPT.py or -m MODULE is the script's. "
    "Or train a model of the catalog; the options below are for that, except --home, --name and --nproc."
)
_GOOD_ENDS = (RunState.FINISHED, RunState.STOPPED)


def add_commands(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the commands of this module."""
    run = add_command(
        commands, "run", "watch a script of your own, or train a model", start_run, is_json=True
    )
    run.usage, run.description = _USAGE, _DESCRIPTION
    run.add_argument("model_word", metavar="MODEL", nargs="?", help="as --model")
    run.add_argument("--name", help="name of the run, any text (default: the model's key and a number)")
    run.add_argument("--detach", action="store_true", help="return right after the start")
    run.add_argument(
        "--on", dest="engine", choices=["ray"], help="train on another machine, which the engine chooses"
    )
    run.add_argument(
        "--retries",
        metavar="N",
        type=int,
        default=0,
        help="with --on: start again when the node is lost, at most N times (default 0)",
    )
    run.add_argument(
        "--force", action="store_true", help="with --on: also on GPUs that are predicted to be too small"
    )
    run.add_argument(
        "--nproc",
        metavar="N",
        type=int,
        default=1,
        help="train in N processes of this machine together, one per GPU (DDP; default 1)",
    )
    add_setting_flags(run)
    train = add_command(commands, "_run", None, train_run)
    train.add_argument("folder", metavar="FOLDER", type=Path)


def start_run(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope run`: start a run and follow it to its end, unless detached."""
    check_script_is_first(arguments.model_word, [arguments.model_word])
    if arguments.script is not None:
        return _start_remote_script(arguments, shell)
    settings = _settings_to_train(arguments, shell)
    if (place := read_place(shell.environ)) is not None:
        return _train_as_rank(arguments, settings, place, shell)
    supervisor = shell.supervisor(arguments)
    ranks = _ranks(arguments)
    folder = supervisor.start(arguments.name, settings, remote=_remote(arguments), ranks=ranks)
    return _after_start(supervisor, folder, arguments, shell)


def check_script_is_first(model_word: str | None, words: Sequence[str | None]) -> None:
    """Raise UsageError if the word in the place of a model names a script and is among `words`: then an
    option before it is none of those that a script may have."""
    if model_word is not None and model_word in words and is_script(model_word):
        raise UsageError(
            f"{model_word!r} is a script: put it right after `stepscope run`. Only --home, --name and "
            "--nproc may stand before it, or with --on also --retries, --detach and --json but no --nproc. "
            "The other options are for models of the catalog; `stepscope set` changes the settings of a "
            "script while it runs."
        )


def _settings_to_train(arguments: Namespace, shell: Shell) -> Settings:
    """Return the settings of a model of the catalog. Raises UsageError, also where a file is named that is
    none of Python's."""
    word = arguments.model_word
    try:
        return settings_of(arguments, shell.environ)
    except SettingError as error:
        if error.setting != "model" or word is None or not Path(word).exists():
            raise
    notebook = " In a notebook, call stepscope.watch." if word.endswith(".ipynb") else ""
    raise UsageError(
        f"{word!r} is neither a model nor a script. A script ends with .py or .pyz, or is named by its path: "
        f".{os.sep}{word}.{notebook}"
    )


def _start_remote_script(arguments: Namespace, shell: Shell) -> int:
    """Start a script on another machine, which has it under the same path, and follow it."""
    script: Script = arguments.script
    script.check()
    if arguments.device is not None:
        raise UsageError("Ray chooses the device of a script, so --device cannot be given with --on.")
    supervisor = shell.supervisor(arguments)
    remote = _remote(arguments)
    folder = supervisor.start_script(arguments.name, origin_of(script), remote=remote)
    return _after_start(supervisor, folder, arguments, shell)


def _after_start(supervisor: Supervisor, folder: RunFolder, arguments: Namespace, shell: Shell) -> int:
    name = folder.request().name
    if arguments.detach:
        if arguments.is_json:
            shell.print_json({"run_id": folder.run_id, "name": name, "path": str(folder.path)})
        else:
            shell.print_line(f"Started {name} ({folder.run_id}). To view it: stepscope show {folder.run_id}")
        return 0
    return _follow(supervisor, folder, name, arguments, shell)


def _follow(supervisor: Supervisor, folder: RunFolder, name: str, arguments: Namespace, shell: Shell) -> int:
    """Follow a run to its end; return the exit code."""
    if not arguments.is_json:
        shell.print_status(f"Started {name} ({folder.run_id}) in {folder.path}")
    follower = RunFollower(supervisor, folder, shell, is_quiet=arguments.is_json)
    run = follower.follow()
    state = run.status.state
    code = 0 if state in _GOOD_ENDS else _failure_code(supervisor, folder, state)
    if code == UsageError.exit_code and not folder.log.exists():
        # Rejected at its start for a reason that only torch can detect: leave nothing, as any rejection.
        supervisor.delete(folder)
        raise UsageError(run.status.message)
    if arguments.is_json:
        shell.print_json(summary_json(run))
    if code:
        shell.print_status(f"stepscope: {run.status.message}")
        if not arguments.is_json:
            shell.print_status(f"Output: {folder.output}")
    elif not arguments.is_json:
        shell.print_line(run.status.message)
    is_interrupted = follower.was_interrupted and state is not RunState.FINISHED
    return INTERRUPTED_CODE if is_interrupted else code


def _train_as_rank(arguments: Namespace, settings: Settings, place: RankPlace, shell: Shell) -> int:
    """Train in this process, which torchrun has started as one rank of a run."""
    from harness.ranks.member import common_folder
    from harness.run import execute

    check_processes(settings, place.size)
    home = shell.home(arguments)

    def create(part: RankPart) -> RunFolder:
        return home.create(arguments.name, settings, time.time_ns(), part=part)

    folder = common_folder(place, shell.environ, create)
    if not place.local_rank:
        shell.print_status(f"Started {folder.request().name} ({folder.run_id}) in {folder.path}")
    _end_rank(execute(RunFolder(folder.path)))


def _end_rank(code: int) -> NoReturn:
    """End the process of a rank at once, its run being complete: while the interpreter shuts down, threads of
    torch's Gloo backend may still need it and abort the process (pytorch/pytorch#179291)."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _ranks(arguments: Namespace) -> int:
    """Return the number of processes. Raises UsageError."""
    ranks: int = arguments.nproc
    check_ranks(ranks)
    if ranks > 1 and arguments.engine is not None:
        raise UsageError("--nproc is for this machine, so --on cannot be given with it.")
    return ranks


def _remote(arguments: Namespace) -> RemoteRequest | None:
    """Return where the run trains; None: here. Raises UsageError, MissingLibraryError."""
    if arguments.engine is None:
        for option, is_given in (("--retries", arguments.retries), ("--force", arguments.force)):
            if is_given:
                raise UsageError(f"{option} is for runs on other machines: --on ray")
        return None
    if arguments.retries < 0:
        raise UsageError(f"--retries cannot be {arguments.retries}; it takes a whole number, at least 0.")
    from harness.remote.ray_cluster import check_ray

    check_ray()
    return RemoteRequest(arguments.engine, arguments.retries, is_forced=arguments.force)


def _failure_code(supervisor: Supervisor, folder: RunFolder, state: RunState) -> int:
    """Return 3 if the run ran out of memory, 2 if the training process rejected its settings, else 1. Waits
    for the process, which may end shortly after its last event."""
    deadline_s = time.monotonic() + _END_S
    with ControlLog(folder) as control:
        while (exit_row := control.last_exit()) is None and time.monotonic() < deadline_s:
            supervisor.reap()
            time.sleep(_POLL_S)
    if state is RunState.OUT_OF_MEMORY:
        return OUT_OF_MEMORY_CODE
    return UsageError.exit_code if exit_row is not None and exit_row.returncode == UsageError.exit_code else 1


def train_run(arguments: Namespace, shell: Shell) -> int:
    """Run `python -m harness _run FOLDER`: the training process of that run."""
    folder = RunFolder(arguments.folder.absolute())
    if not folder.path.is_dir():
        raise UsageError(f"There is no run folder {folder.path}.")
    if folder.request().remote is not None:
        from harness.remote import run as remote_run  # Without torch.

        return remote_run.execute(folder, shell.environ)
    if folder.request().part.ranks > 1 and read_place(shell.environ) is None:
        from harness.ranks.launching import launch

        return launch(folder, training_command(folder), folder.request().part.ranks)
    gc.disable()  # Objects created by importing torch live to the end; collections among them take 0.4 s.
    from harness.run import execute

    gc.freeze()
    gc.enable()
    code = execute(folder)
    return code if read_place(shell.environ) is None else _end_rank(code)
