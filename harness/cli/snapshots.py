"""`snapshots`: live allocations of a run by allocation site, and the difference of two snapshots."""

import argparse
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from harness import words
from harness.analysis.memory.snapshots import (
    CHANGE_HEADINGS,
    SITE_HEADINGS,
    SNAPSHOT_HEADINGS,
    by_category,
    change_cells,
    compare,
    site_cells,
    snapshot_cells,
    suspects,
)
from harness.cli.parser import Parser, add_command
from harness.cli.shell import Shell, find_run
from harness.errors import UsageError
from harness.records.memory import AllocationRow, SnapshotRow
from harness.store.reader import LogReader
from harness.tracking.snapshot_file import FileSummary, summarize

_MOST_SITES = 20
_NO_SNAPSHOT = "This run has no snapshot; while it trains, `stepscope do RUN snapshot` takes one."


def add_commands(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the commands of this module."""
    summary = "show live allocations: a run's snapshots, or a PyTorch snapshot file"
    parser = add_command(commands, "snapshots", summary, show_snapshots, is_json=True)
    what = "a run (default: the newest), or a .pickle written by PyTorch or Stepscope"
    parser.add_argument("what", metavar="RUN|FILE", nargs="?", default="latest", help=what)
    parser.add_argument("--of", metavar="ID", type=int, help="the snapshot to show (default: the newest)")
    parser.add_argument(
        "--compare", metavar=("A", "B"), nargs=2, help="two snapshots of the run by ID, or two files"
    )
    parser.add_argument(
        "--all", action="store_true", help=f"show every site instead of the first {_MOST_SITES}"
    )


def show_snapshots(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope snapshots RUN|FILE`. Files are untrusted: no code in them is executed."""
    if arguments.compare is not None:
        return _show_changes(arguments, shell)
    path = Path(arguments.what)
    if _is_file(arguments.what):
        file_summary, rows = summarize(path)
        return _show_file(arguments, shell, file_summary, rows)
    with LogReader(find_run(shell.home(arguments), arguments.what).log) as log:
        snapshots = log.memory.snapshots()
        is_choice = bool(snapshots) or arguments.of is not None
        chosen = _chosen(snapshots, arguments.of) if is_choice else None
        rows = [] if chosen is None else log.memory.allocations(chosen.snapshot_id)
    if arguments.is_json:
        shell.print_json(
            {
                "snapshots": [row._asdict() for row in snapshots],
                "of": None if chosen is None else chosen.snapshot_id,
                "sites": [row._asdict() for row in rows],
            }
        )
        return 0
    if chosen is None:
        shell.print_status(_NO_SNAPSHOT)
        return 0
    shell.print_table(SNAPSHOT_HEADINGS, [snapshot_cells(row) for row in snapshots])
    shell.print_line("")
    shell.print_line(f"Snapshot {chosen.snapshot_id}:")
    _print_sites(arguments, shell, rows)
    return 0


def _is_file(what: str) -> bool:
    return Path(what).suffix in (".pickle", ".pkl") or Path(what).is_file()


def _chosen(snapshots: Sequence[SnapshotRow], number: int | None) -> SnapshotRow:
    if number is None:
        return snapshots[-1]
    for row in snapshots:
        if row.snapshot_id == number:
            return row
    ids = ", ".join(str(row.snapshot_id) for row in snapshots)
    if not ids:
        raise UsageError(f"There is no snapshot {number}. {_NO_SNAPSHOT}")
    raise UsageError(f"There is no snapshot {number} in this run; it has {ids}.")


def _show_file(
    arguments: Namespace, shell: Shell, file_summary: FileSummary, rows: list[AllocationRow]
) -> int:
    if arguments.is_json:
        shell.print_json({"file": file_summary._asdict(), "sites": [row._asdict() for row in rows]})
        return 0
    facts = [
        ("device", words.count(file_summary.device)),
        ("peak allocated", words.size(file_summary.allocated_bytes)),
        ("allocated at the end", words.size(file_summary.end_allocated_bytes)),
        ("reserved", words.size(file_summary.reserved_bytes)),
        ("events", words.count(file_summary.events)),
        ("sites", words.count(file_summary.sites)),
    ]
    shell.print_table(("", ""), facts)
    shell.print_line("")
    _print_sites(arguments, shell, rows)
    return 0


def _print_sites(arguments: Namespace, shell: Shell, rows: list[AllocationRow]) -> None:
    for part in by_category(rows):
        shell.print_line(f"  {words.size(part.held_bytes)} {part.category}")
    shell.print_line("")
    listed = rows if arguments.all else rows[:_MOST_SITES]
    ranks = {row.rank for row in listed}
    listed = [*listed, *(row for row in suspects(rows)[:3] if row.rank not in ranks)]
    shell.print_table(SITE_HEADINGS, [site_cells(row) for row in listed])
    if len(rows) > len(listed):
        shell.print_line(f"{words.plural(len(rows) - len(listed), 'smaller site')} more; --all shows them.")


def _show_changes(arguments: Namespace, shell: Shell) -> int:
    changes = compare(*(_rows_of(arguments, shell, name) for name in arguments.compare))
    if arguments.is_json:
        shell.print_json([change._asdict() | {"grown_bytes": change.grown_bytes} for change in changes])
    elif not changes:
        shell.print_line("The two snapshots do not differ.")
    else:
        listed = changes if arguments.all else changes[:_MOST_SITES]
        shell.print_table(CHANGE_HEADINGS, [change_cells(change) for change in listed])
    return 0


def _rows_of(arguments: Namespace, shell: Shell, name: str) -> list[AllocationRow]:
    if _is_file(name):
        return summarize(Path(name))[1]
    try:
        number = int(name)
    except ValueError:
        raise UsageError(f"--compare takes two snapshot IDs or two files, not {name!r}.") from None
    with LogReader(find_run(shell.home(arguments), arguments.what).log) as log:
        row = _chosen(_all(log), number)
        return log.memory.allocations(row.snapshot_id)


def _all(log: LogReader) -> list[SnapshotRow]:
    snapshots = log.memory.snapshots()
    if not snapshots:
        raise UsageError(_NO_SNAPSHOT)
    return snapshots
