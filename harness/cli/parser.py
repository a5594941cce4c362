"""The command-line parser."""

import argparse
import difflib
import re
from collections.abc import Callable, Iterable
from typing import NoReturn

from harness.cli.shell import Shell
from harness.cli.streams import write_error

USAGE_CODE = 2


class Parser(argparse.ArgumentParser):
    """An argument parser that reports an error in one sentence, with the nearest valid word if any."""

    def error(self, message: str) -> NoReturn:
        """Report the error and exit with code 2."""
        write_error(f"{self.prog}: {self._sentence(message)}\n")
        raise SystemExit(USAGE_CODE)

    def _sentence(self, message: str) -> str:
        choice = re.match(r"argument (.+): invalid choice: '?(.*?)'? \(choose from (.*)\)$", message)
        if choice:
            what = "command" if choice[1] == "COMMAND" else choice[1]
            names = [word.strip().strip("'") for word in choice[3].split(",")]
            return f"there is no {what} {choice[2]!r}; {nearest(choice[2], names, self.prog)}"
        number = re.match(r"argument (.+): invalid (int|float) value: (.*)$", message)
        if number:
            kind = "whole number" if number[2] == "int" else "number"
            return f"{number[1]} cannot be {number[3]}; it takes a {kind}."
        return f"{message}; see `{self.prog} --help`."

    def refuse_unknown(self, extras: list[str]) -> NoReturn:
        """Report the first unknown word and the nearest known flag. Exits with code 2."""
        flag = next((word for word in extras if word.startswith("-")), None)
        if flag is None:
            name, _, value = extras[0].partition("=")
            option = f"--{name.replace('_', '-')}"
            if value and option in self._option_string_actions:
                write_error(f"{self.prog}: {extras[0]!r} is no option; did you mean '{option} {value}'?\n")
                raise SystemExit(USAGE_CODE)
            self.error(f"{extras[0]!r} is one word too many")
        name = flag.partition("=")[0]
        sentence = f"there is no option {name!r}; {nearest(name, self._option_string_actions, self.prog)}"
        write_error(f"{self.prog}: {sentence}\n")
        raise SystemExit(USAGE_CODE)


def add_command(
    commands: "argparse._SubParsersAction[Parser]",
    name: str,
    summary: str | None,
    function: Callable[[argparse.Namespace, Shell], int],
    *,
    is_json: bool = False,
) -> Parser:
    """Add a command that `function` runs; without a `summary` it is not listed in the help."""
    if summary is None:
        parser = commands.add_parser(name, allow_abbrev=False)
    else:
        parser = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
    parser.add_argument("--home", metavar="FOLDER", help="folder of the runs (or STEPSCOPE_HOME)")
    if is_json:
        parser.add_argument("--json", action="store_true", dest="is_json", help="print JSON")
    parser.set_defaults(command=function, parser=parser)
    return parser


def nearest(word: str, names: Iterable[str], program: str) -> str:
    """Return a question with the known word nearest to `word`, or a pointer to the help."""
    near = difflib.get_close_matches(word, [k for k in names if not k.startswith("_")], n=1)
    return f"did you mean {near[0]!r}?" if near else f"`{program} --help` lists them all."
