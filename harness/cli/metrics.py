"""`metrics`: serve metrics for Prometheus, without the dashboard.

The command becomes the server (`exec`), as `dashboard` does: its guard is the dashboard's.
"""

import argparse
import sys
from argparse import Namespace

from harness.cli.dashboard import dashboard_folder
from harness.cli.parser import Parser, add_command
from harness.cli.serving import become
from harness.cli.shell import Shell
from harness.errors import UsageError
from harness.store.token import TOKEN_FILE

_DEFAULT_PORT = 9464
_LOOPBACK = "127.0.0.1"


def add_commands(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the commands of this module."""
    parser = add_command(commands, "metrics", "serve metrics of all runs for Prometheus", serve)
    parser.add_argument(
        "--port", metavar="N", type=int, default=_DEFAULT_PORT, help=f"default {_DEFAULT_PORT}"
    )
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        default=_LOOPBACK,
        help=f"address to listen on (default {_LOOPBACK}); other users and machines need the home's token",
    )


def serve(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope metrics`. Returns only if the server cannot be started."""
    if not 1 <= arguments.port <= 65_535:
        raise UsageError(f"--port cannot be {arguments.port}; it takes a whole number from 1 to 65535.")
    server = dashboard_folder() / "metrics_server.py"
    home = shell.home(arguments)
    if arguments.host != _LOOPBACK:
        shell.print_status(
            f"Scrapers of other users or machines send the token in {home.path / TOKEN_FILE}, as "
            "`authorization: {credentials_file: …}` of Prometheus does. The connection is not encrypted."
        )
    environ = {**shell.environ, "STEPSCOPE_HOME": str(home.path)}
    # -P: no module is imported from the current folder by accident.
    command = [sys.executable, "-P", str(server), arguments.host, str(arguments.port)]
    become(command, environ)
