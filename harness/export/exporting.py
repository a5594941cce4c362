"""Export of one run into a folder of its own, which appears complete or not at all."""

import errno
import json
import os
import secrets
import shutil
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from harness.errors import StepscopeError, UsageError
from harness.export.events import write_events
from harness.export.formats import ExportFormat, open_table
from harness.export.tables import TABLES, Table
from harness.files.regular import private_opener
from harness.records.run import RunRow
from harness.store.folder import RunFolder, RunRequest
from harness.store.reader import LogReader
from harness.words import printable

HEADER = "run.json"


# Of a disk, a quota, and a limit on the size of a file.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Exported(NamedTuple):
    """A completed export: its folder, and the rows of each table (events: of the event file)."""

    path: Path
    rows: dict[str, int]
    # The newest step; None: the run has none.
    last_step: int | None


def export_run(
    folder: RunFolder, target: Path, form: ExportFormat, tables: Sequence[Table] = tuple(TABLES.values())
) -> Exported:
    """Export a run into the new folder `target`/<id of the run>; of a live run what its log has by now.

    Nothing is overwritten, and after an error nothing is left. Raises UsageError when the folder exists,
    StepscopeError when it cannot be written, LogError when the log cannot be read.
    """
    path = target / folder.path.name
    if os.path.lexists(path):
        raise UsageError(
            f"{printable(str(path))} exists, and nothing is overwritten; delete it, or choose another folder "
            "with -o."
        )
    draft = target / f".{folder.path.name[:100]}.{secrets.token_hex(4)}"
    missing: list[Path] = []
    with LogReader(folder.log) as reader:
        try:
            missing += [parent for parent in (target, *target.parents) if not parent.exists()]
            draft.mkdir(parents=True, mode=0o700)
            exported = _write(reader, folder.request(), draft, form, tables)
            draft.rename(path)
        except OSError as error:
            raise StepscopeError(_failed(path, error)) from None
        finally:
            shutil.rmtree(draft, ignore_errors=True)
            with suppress(OSError):  # One that is not there, or not empty, as after an export.
                for parent in missing:
                    parent.rmdir()
    return exported._replace(path=path)


def print_table(folder: RunFolder, table: Table, form: ExportFormat, file: IO[str]) -> int:
    """Write one table of a run to an open text file; return the number of rows. Raises LogError, OSError."""
    rows = 0
    with LogReader(folder.log) as reader:
        writer = open_table(form, table, file)
        for page in table.pages(reader):
            writer.write(page)
            rows += len(page)
        writer.close()
    return rows


def _write(
    reader: LogReader, request: RunRequest, draft: Path, form: ExportFormat, tables: Sequence[Table]
) -> Exported:
    run, last_step = reader.run(), reader.extent().last
    if form is ExportFormat.TENSORBOARD:
        # The form of name by which TensorBoard finds event files.
        name = f"events.out.tfevents.{run.started_unix_ns // 10**9}.stepscope"
        with _new_file(draft / name, is_text=False) as file:
            rows = {"events": write_events(reader, run, file)}
    else:
        rows = {table.name: _write_table(reader, table, draft, form) for table in tables}
    with _new_file(draft / HEADER, is_text=True) as file:
        json.dump(_header(run, request, rows), file, indent=1, ensure_ascii=False)
        file.write("\n")
    return Exported(draft, rows, last_step)


def _write_table(reader: LogReader, table: Table, draft: Path, form: ExportFormat) -> int:
    rows = 0
    with ExitStack() as stack:
        file = stack.enter_context(_new_file(draft / f"{table.name}.{form.value}", form.is_text))
        writer = open_table(form, table, file)
        for page in table.pages(reader):
            writer.write(page)
            rows += len(page)
        writer.close()
    return rows


def _new_file(path: Path, is_text: bool) -> IO[Any]:
    """Create a file that is private to the user."""
    if is_text:
        return open(path, "x", encoding="utf-8", newline="", opener=private_opener)
    return open(path, "xb", opener=private_opener)


def _header(run: RunRow, request: RunRequest, rows: dict[str, int]) -> dict[str, Any]:
    """Return the facts about a run that are not a table."""
    facts = run._asdict()
    for name in ("settings", "device", "versions"):
        facts[name] = json.loads(facts[name])
    facts["simulated"] = bool(run.simulated)
    facts["script"] = None if request.script is None else request.script._asdict()
    return facts | {"rows": rows}


def _failed(path: Path, error: OSError) -> str:
    reason = (error.strerror or str(error)).lower()
    advice = "free some space, or " if error.errno in _FULL else ""
    target = printable(str(path))
    return (
        f"The export to {target} could not be written: {reason}. Nothing is left of it; {advice}"
        "choose another folder with -o."
    )
