"""The shell: `stepscope dashboard|run|predict|list|show|advise|set|do|snapshots|profile|pause|stop|…`.

Exit codes: 0 done, 1 failed, 2 asked for something that cannot be (nothing was started), 3 predicted not to
fit, 130 interrupted. Nothing here imports torch but the training process itself (`_run`), the doctor, and
`predict` where there may be a GPU.
"""

import os
import sys
from collections.abc import Mapping, Sequence

from harness import __version__
from harness.cli import (
    advising,
    dashboard,
    demos,
    listing,
    machine,
    predicting,
    profiling,
    snapshots,
    starting,
    steering,
)
from harness.cli.parser import Parser
from harness.cli.shell import Shell
from harness.errors import StepscopeError

INTERRUPTED_CODE = 130


def build_parser() -> Parser:
    """The whole grammar."""
    parser = Parser(prog="stepscope", description="An oscilloscope for PyTorch training.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"stepscope {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    families = (starting, predicting, listing, advising, steering, snapshots, profiling)
    for family in (*families, machine, demos, dashboard):
        family.add_commands(commands)
    return parser


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Carry out one command and return the exit code. Raises SystemExit as argparse does."""
    parser = build_parser()
    arguments, extras = parser.parse_known_args(argv)
    if extras:
        arguments.parser.refuse_unknown(extras)
    shell = Shell.open(environ)
    try:
        code: int = arguments.command(arguments, shell)
        sys.stdout.flush()
    except StepscopeError as error:
        shell.complain(f"stepscope: {error}")
        return error.exit_code
    except BrokenPipeError:
        # The reader (`| head`) has gone: nothing more to say, and nothing to flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED_CODE
    return code
