"""An export as one zip file, for a download."""

import zipfile
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from harness.export.exporting import export_run
from harness.export.formats import ExportFormat
from harness.store.folder import RunFolder


def zip_runs(folders: Iterable[RunFolder], form: ExportFormat, file: IO[bytes]) -> None:
    """Write a zip file with the exports of runs, each in a folder of its own. Raises as `export_run`."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for folder in folders:
            with TemporaryDirectory(prefix="stepscope-") as scratch:
                exported = export_run(folder, Path(scratch), form)
                for path in sorted(exported.path.iterdir()):
                    archive.write(path, f"{exported.path.name}/{path.name}")
