"""`doctor`: what this machine can do."""

import argparse

from harness.cli.parser import Parser


def add_commands(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add this family's commands."""
