"""`import`: a run's folder or a TensorBoard log as a run of this home."""

import argparse
from argparse import Namespace
from pathlib import Path

from harness.cli.parser import Parser, add_command
from harness.cli.shell import Shell
from harness.importing import import_folder


def add_commands(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the commands of this module."""
    parser = add_command(commands, "import", "add a run's folder, or a TensorBoard log to compare with", run)
    parser.add_argument("folder", metavar="FOLDER", help="folder of a run, or with TensorBoard's event files")
    parser.add_argument("--name", help="name of the run (default: its own, or the folder's)")


def run(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope import FOLDER`."""
    imported = import_folder(shell.home(arguments), Path(arguments.folder).expanduser(), arguments.name)
    shell.print_line(f"Imported {imported.name} ({imported.folder.run_id}): {imported.contents}")
    for note in imported.notes:
        shell.print_status(note)
    return 0
