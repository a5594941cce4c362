"""The shell: `stepscope dashboard|run|queue|predict|list|show|compare|advise|set|do|profile|pause|…`.

Exit codes: 0 success, 1 failure, 2 invalid request (nothing was started), 3 predicted not to fit, 4 a gate of
`compare` failed, 130 interrupted. Only the training process (`_run`), the doctor, and `predict` on a system
that may have a GPU import torch.
"""

import os
import sys
from argparse import _SubParsersAction
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Protocol, cast

from harness import __version__
from harness.cli.parser import Parser
from harness.cli.shell import Shell
from harness.cli.streams import discard, watch_output, write_error
from harness.errors import INTERRUPTED_CODE, StepscopeError

TRAINING_COMMAND = "_run"
# The modules of the commands, in the order of the help.
_COMMANDS: Mapping[str, Sequence[str]] = {
    "starting": ("run", TRAINING_COMMAND),
    "queueing": ("queue",),
    "predicting": ("predict",),
    "runs": ("list", "tag", "note"),
    "listing": ("show", "settings"),
    "advising": ("advise",),
    "steering": ("set", "do", "pause", "resume", "stop", "delete"),
    "measuring": ("measure",),
    "tuning": ("tune",),
    "snapshots": ("snapshots",),
    "profiling": ("profile",),
    "exporting": ("export",),
    "importing": ("import",),
    "comparing": ("compare",),
    "reporting": ("report",),
    "models": ("models",),
    "machine": ("doctor",),
    "demos": ("demo",),
    "dashboard": ("dashboard",),
    "metrics": ("metrics",),
    "watching": ("watch",),
}


class _Family(Protocol):
    def add_commands(self, commands: "_SubParsersAction[Parser]") -> None: ...


def build_parser(command: str | None = None) -> Parser:
    """Build the parser of all commands, or of those in one module with `command`: importing all modules takes
    longer than a short command."""
    parser = Parser(prog="stepscope", description="An oscilloscope for PyTorch training.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"stepscope {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    is_known = any(command in names for names in _COMMANDS.values())
    for module, names in _COMMANDS.items():
        if not is_known or command in names:
            cast(_Family, import_module(f"harness.cli.{module}")).add_commands(commands)
    return parser


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Run one command and return its exit code. Raises SystemExit as argparse does, and OSError."""
    words = sys.argv[1:] if argv is None else list(argv)
    script = None
    if words[:1] == ["queue"]:
        from harness.cli.queueing import split_script

        words, script = split_script(words)  # What follows a script is the script's.
    if words[:1] == ["run"]:
        from harness.cli.scripts import split_remote_script

        words, script = split_remote_script(words)
    parser = build_parser(next(iter(words), None))
    arguments, extras = parser.parse_known_args(words)
    arguments.script = script
    shell = Shell.open(environ)
    try:
        if extras:
            if words[:1] == ["run"]:
                from harness.cli.starting import check_script_is_first

                check_script_is_first(arguments.model_word, words[: words.index(extras[0])])
            arguments.parser.refuse_unknown(extras)
        code: int = arguments.command(arguments, shell)
    except StepscopeError as error:
        shell.print_status(f"stepscope: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED_CODE
    return code


def run_process() -> int:
    """Run the command in `sys.argv`, flush its output, and return the exit code of the process."""
    sys.stdout, output = watch_output(sys.stdout)
    try:
        try:
            code = main()
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 0
        sys.stdout.flush()
    except OSError as error:
        code = StepscopeError.exit_code
        if output.error is None:
            if sys.argv[1:2] == [TRAINING_COMMAND]:
                raise  # A traceback in the run's output is more useful.
            write_error(f"stepscope: {_sentence(error)}\n")
    if output.error is None:
        return code
    discard(sys.stdout)
    if isinstance(output.error, BrokenPipeError):
        return 0  # The reader (`| head`) has ended, which is no error.
    write_error(f"stepscope: The output could not be written: {_reason(output.error)}.\n")
    return StepscopeError.exit_code


def _sentence(error: OSError) -> str:
    if error.filename is None:
        return f"The operating system refused the operation: {_reason(error)}."
    return f"{error.filename} cannot be used: {_reason(error)}."


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
