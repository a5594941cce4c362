"""The shell: `stepscope dashboard|run|predict|list|show|advise|set|measure|do|profile|pause|stop|…`.

Exit codes: 0 success, 1 failure, 2 invalid request (nothing was started), 3 predicted not to fit, 130
interrupted. Only the training process (`_run`), the doctor, and `predict` on a system that may have a GPU
import torch.
"""

import os
import sys
from collections.abc import Mapping, Sequence

from harness import __version__
from harness.cli import (
    advising,
    dashboard,
    demos,
    exporting,
    listing,
    machine,
    measuring,
    metrics,
    models,
    predicting,
    profiling,
    snapshots,
    starting,
    steering,
    watching,
)
from harness.cli.parser import Parser
from harness.cli.shell import Shell
from harness.cli.starting import TRAINING_COMMAND
from harness.cli.streams import discard, watch_output, write_error
from harness.errors import INTERRUPTED_CODE, StepscopeError

# In the order of the help.
_FAMILIES = (
    starting,
    predicting,
    listing,
    advising,
    steering,
    measuring,
    snapshots,
    profiling,
    exporting,
    models,
    machine,
    demos,
    dashboard,
    metrics,
    watching,
)


def build_parser() -> Parser:
    """Build the parser of all commands."""
    parser = Parser(prog="stepscope", description="An oscilloscope for PyTorch training.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"stepscope {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for family in _FAMILIES:
        family.add_commands(commands)
    return parser


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Run one command and return its exit code. Raises SystemExit as argparse does, and OSError."""
    parser = build_parser()
    arguments, extras = parser.parse_known_args(argv)
    if extras:
        arguments.parser.refuse_unknown(extras)
    shell = Shell.open(environ)
    try:
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
