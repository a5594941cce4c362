"""`stepscope run train.py …`: a person's own script. What follows the script is the script's."""

import os
import signal
import sys
import time
from argparse import SUPPRESS, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from harness.attach.launch import (
    DISABLED_VARIABLE,
    ENDS_BY_SIGINT,
    Script,
    origin_of,
    run_script,
    run_script_into,
)
from harness.cli.parser import Parser
from harness.cli.ranks import check_ranks
from harness.cli.script_words import are_only, split_at_script
from harness.cli.streams import leave_streams_closed, write_error
from harness.errors import INTERRUPTED_CODE, StepscopeError, UsageError
from harness.records.ranks import RankPart
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.supervisor.launch import plain_command, script_command

# `--into` names the folder of a run that the queue has created.
_OPTIONS = ("--home", "--name", "--nproc", "--into")
_REMOTE_OPTIONS = ("--home", "--name", "--on", "--retries")
_REMOTE_FLAGS = ("--detach", "--json")


class ScriptCommand(NamedTuple):
    """The words of the shell that are Stepscope's, and the script with its arguments."""

    options: tuple[str, ...]
    script: Script


def find_script(words: Sequence[str]) -> ScriptCommand | None:
    """Return the script in the words of `stepscope`; None when they name none: then `run` trains a model of
    the catalog, or it is another command."""
    if not words or words[0] != "run":
        return None
    own, script = split_at_script(words, 1, _OPTIONS)
    if script is None or not are_only(own[1:], _OPTIONS):
        return None
    return ScriptCommand(tuple(own[1:]), script)


def split_remote_script(words: Sequence[str]) -> tuple[list[str], Script | None]:
    """Split the words of `stepscope run --on … SCRIPT …`, which runs on another machine, into those of
    Stepscope and the script with its arguments; None: they name no script, or it runs here."""
    own, script = split_at_script(words, 1, _REMOTE_OPTIONS, _REMOTE_FLAGS)
    is_remote = any(word.partition("=")[0] == "--on" for word in own)
    if script is None or not is_remote or not are_only(own[1:], _REMOTE_OPTIONS, _REMOTE_FLAGS):
        return list(words), None
    return own, script


def run(command: ScriptCommand) -> int:
    """Run the script under watch and return the exit code of the process, or ENDS_BY_SIGINT. Raises
    SystemExit for options that do not exist."""
    arguments = _parse(command.options)
    # Ctrl-C is the script's, as everything else of this process; where it is ignored, as for a command in the
    # background of a shell script, it stays ignored.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.unraisablehook = sys.__unraisablehook__
    leave_streams_closed()
    try:
        if not command.script.target:
            raise UsageError("-m needs the name of a module, such as: stepscope run -m package.train")
        if arguments.into is not None:
            code = run_script_into(command.script, RunFolder(arguments.into), os.environ)
            return INTERRUPTED_CODE if code == ENDS_BY_SIGINT else code
        home = Home.locate(arguments.home, os.environ)
        if arguments.nproc == 1:
            return run_script(command.script, home, arguments.name, os.environ)
        check_ranks(arguments.nproc)
        return _launch(command.script, home, arguments.name, arguments.nproc)
    except StepscopeError as error:
        write_error(f"stepscope: {error}\n")
        return error.exit_code


def _launch(script: Script, home: Home, name: str | None, ranks: int) -> int:
    """Run the script in so many processes, under watch, and return the exit code of the first that failed."""
    from harness.ranks.launching import launch

    script.check()
    origin = origin_of(script)
    if os.environ.get(DISABLED_VARIABLE) == "1":
        return launch(None, plain_command(origin), ranks)
    folder = home.create_for_script(name, origin, time.time_ns(), part=RankPart(ranks))
    return launch(folder, script_command(folder, origin), ranks)


def _parse(words: Sequence[str]) -> Namespace:
    parser = Parser(prog="stepscope run", allow_abbrev=False)
    parser.add_argument("--home", metavar="FOLDER")
    parser.add_argument("--name")
    parser.add_argument("--nproc", type=int, default=1)
    parser.add_argument("--into", type=Path, help=SUPPRESS)
    return parser.parse_args(words)
