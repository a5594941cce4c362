"""`report`: one self-contained HTML file of a run or a comparison.

The file is written by a process of the dashboard's package, which has the charts: the harness does not depend
on it.
"""

import argparse
import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

from harness.cli.comparing import RUN_HELP, distinct_runs
from harness.cli.parser import Parser, add_command
from harness.cli.shell import Shell
from harness.words import size

_LONGEST_STEM = 80


def add_commands(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the commands of this module."""
    parser = add_command(commands, "report", "write a run, or a comparison, as one HTML file", write_report)
    parser.add_argument("runs", metavar="RUN", nargs="+", help=f"{RUN_HELP}; several are compared")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="the file (default: stepscope-<run>.html in this folder)"
    )
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")


def write_report(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope report RUN [OTHER…]`."""
    home = shell.home(arguments)
    folders = distinct_runs(home, arguments.runs)
    path = Path(arguments.output or default_name(folders[0].request().name)).absolute()
    command = [
        sys.executable,
        "-P",
        "-m",
        "dashboard.report",
        "--home",
        str(home.path),
        "--output",
        str(path),
    ]
    command += ["--force"] if arguments.force else []
    code = subprocess.run([*command, "--", *(str(folder.path) for folder in folders)], check=False).returncode
    if code == 0:
        shell.print_line(f"Wrote {path} ({size(path.stat().st_size)})")
    return code


def default_name(run: str) -> str:
    """Return the file name of a run's report."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", run).strip("-.")[:_LONGEST_STEM]
    return f"stepscope-{stem or 'run'}.html"
