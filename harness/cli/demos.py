"""`demo`: named scenarios as simulated runs, and recorded runs if there are any, to explore without
training."""

import argparse
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from harness.cli.parser import Parser, add_command
from harness.cli.shell import Shell
from harness.errors import UsageError
from harness.store.home import Home


def add_commands(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the commands of this module."""
    demo = add_command(commands, "demo", "write simulated runs to explore", write_demos, is_json=True)
    names = "steady, amp, leak, oom, … (default: all of them)"
    demo.add_argument("scenarios", metavar="SCENARIO", nargs="*", help=names)
    demo.add_argument("--steps", metavar="N", type=int, help="steps per run (default: set by the scenario)")
    demo.add_argument("--seed", metavar="N", type=int, default=0, help="seed of the figures (default 0)")


def write_demos(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope demo [SCENARIO…]`; all names are validated before the first run is written. Without
    names, the runs recorded on a GPU are added too."""
    if arguments.steps is not None and arguments.steps < 1:
        raise UsageError(f"--steps cannot be {arguments.steps}; it takes a whole number, at least 1.")
    from harness.demo import SCENARIOS, scenario, write_all  # imports numpy, which `list` does without

    keys = [scenario(key).key for key in arguments.scenarios or SCENARIOS]
    written = write_all(shell.home(arguments), keys, steps=arguments.steps, seed=arguments.seed)
    rows = []
    for key, folder in zip(keys, written, strict=True):
        name = folder.request().name
        rows.append({"run_id": folder.run_id, "name": name, "scenario": key, "path": str(folder.path)})
        if not arguments.is_json:
            shell.print_line(f"Wrote {name} ({folder.run_id}, simulated)")
    if not arguments.scenarios:
        rows += _add_recorded(
            shell.home(arguments), (lambda _: None) if arguments.is_json else shell.print_line
        )
    if arguments.is_json:
        shell.print_json(rows)
    return 0


def _add_recorded(home: Home, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Add the recorded runs of this checkout."""
    from harness.demo.recordings import add_all

    rows = []
    for folder in add_all(home):
        name = folder.request().name
        rows.append({"run_id": folder.run_id, "name": name, "scenario": None, "path": str(folder.path)})
        say(f"Wrote {name} ({folder.run_id}, recorded on a GPU)")
    return rows
