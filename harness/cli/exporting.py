"""`export`: runs as CSV, JSON lines, Parquet or TensorBoard event files."""

import argparse
from argparse import Namespace
from pathlib import Path

from harness import words
from harness.cli.parser import Parser, add_command
from harness.cli.shell import Shell, find_run
from harness.errors import StepscopeError, UsageError
from harness.export import TABLES, Exported, ExportFormat, export_run, print_table
from harness.store.folder import RunFolder
from harness.supervisor import Supervisor

_STDOUT = "-"
_DEFAULT_TABLE = "steps"


def add_commands(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the commands of this module."""
    export = add_command(
        commands, "export", "write runs as CSV, JSON lines, Parquet or TensorBoard files", export_runs
    )
    export.add_argument(
        "runs", metavar="RUN", nargs="+", help="id, name, an unambiguous beginning, or 'latest'"
    )
    forms = [form.value for form in ExportFormat]
    export.add_argument("--format", choices=forms, default=ExportFormat.CSV.value, help="default csv")
    export.add_argument(
        "-o", "--output", metavar="FOLDER", required=True,
        help="each run gets a new folder in it; '-' prints one table (csv or jsonl)",
    )  # fmt: skip
    export.add_argument(
        "--table", dest="tables", metavar="TABLE", action="append", choices=list(TABLES),
        help=f"only this table, may be repeated: {', '.join(TABLES)} (default: all; with '-o -' steps)",
    )  # fmt: skip


def export_runs(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope export RUN…`. One run that cannot be exported does not keep the others from it; the exit
    code is then 1."""
    supervisor, form = shell.supervisor(arguments), ExportFormat(arguments.format)
    folders = list(dict.fromkeys(find_run(supervisor.home, key) for key in arguments.runs))
    if arguments.output == _STDOUT:
        return _print(arguments, folders, form, supervisor, shell)
    if form is ExportFormat.TENSORBOARD and arguments.tables:
        raise UsageError("--table cannot be used with --format tensorboard: event files have no tables.")
    tables = [TABLES[name] for name in arguments.tables or TABLES]
    failed = None
    for folder in folders:
        try:
            exported = export_run(folder, Path(arguments.output), form, tables)
        except StepscopeError as error:
            if len(folders) == 1:
                raise
            shell.print_status(f"stepscope: {folder.run_id}: {error}")
            failed = error
        else:
            shell.print_line(f"{words.printable(str(exported.path))}: {_contents(exported)}")
            _note_state(exported.last_step, folder, supervisor, shell)
    return 0 if failed is None else failed.exit_code


def _print(
    arguments: Namespace, folders: list[RunFolder], form: ExportFormat, supervisor: Supervisor, shell: Shell
) -> int:
    names = arguments.tables or [_DEFAULT_TABLE]
    if not form.is_text:
        raise UsageError(f"-o - cannot print {form.value}; use --format csv or jsonl, or name a folder.")
    if len(folders) > 1 or len(names) > 1:
        raise UsageError("-o - prints one table of one run; name a folder for more.")
    print_table(folders[0], TABLES[names[0]], form, shell.out.file)
    _note_state(supervisor.summary(folders[0]).last_step, folders[0], supervisor, shell)
    return 0


def _contents(exported: Exported) -> str:
    nouns = {name: name.removesuffix("s").replace("_", " ") for name in exported.rows}
    nouns["unobserved_steps"] = "unobserved block"  # Of several steps.
    return (
        ", ".join(words.plural(rows, nouns[name]) for name, rows in exported.rows.items() if rows)
        or "no rows"
    )


def _note_state(last_step: int | None, folder: RunFolder, supervisor: Supervisor, shell: Shell) -> None:
    """Say on stderr what is not in the export: steps of a run without any, and of a live run later ones."""
    run = supervisor.summary(folder)
    if last_step is None:
        shell.print_status(f"{run.name} has no steps: {run.status.message}")
    elif not run.status.state.is_over:
        shell.print_status(
            f"{run.name} is {run.status.state.value}: exported up to step {words.count(last_step)}."
        )
