"""`demo`: named scenarios as simulated runs, to look around without training anything."""

import argparse
from argparse import Namespace

from harness.cli.parser import Parser, add_command
from harness.cli.shell import Shell
from harness.errors import UsageError


def add_commands(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add this family's commands."""
    demo = add_command(commands, "demo", "write simulated runs to look at", write_demos, is_json=True)
    names = "steady, amp, leak, oom, … (default: all of them)"
    demo.add_argument("scenarios", metavar="SCENARIO", nargs="*", help=names)
    demo.add_argument(
        "--steps", metavar="N", type=int, help="how many steps each (default: the scenario's own)"
    )
    demo.add_argument("--seed", metavar="N", type=int, default=0, help="seeds the figures (default 0)")


def write_demos(arguments: Namespace, shell: Shell) -> int:
    """`stepscope demo [SCENARIO…]`; all names are checked before the first is written."""
    if arguments.steps is not None and arguments.steps < 1:
        raise UsageError(f"--steps cannot be {arguments.steps}; it takes a whole number, at least 1.")
    from harness.demo import SCENARIOS, scenario, write_all  # numpy: time that `list` need not pay

    keys = [scenario(key).key for key in arguments.scenarios or SCENARIOS]
    written = write_all(shell.home(arguments), keys, steps=arguments.steps, seed=arguments.seed)
    told = []
    for key, folder in zip(keys, written, strict=True):
        name = folder.request().name
        told.append({"run_id": folder.run_id, "name": name, "scenario": key, "path": str(folder.path)})
        if not arguments.is_json:
            shell.say(f"Wrote {name} ({folder.run_id}, simulated)")
    if arguments.is_json:
        shell.print_json(told)
    return 0
