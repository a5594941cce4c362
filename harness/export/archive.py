"""An export as one zip file, for a download."""

import io
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from harness.export.exporting import export_run
from harness.export.formats import ExportFormat
from harness.store.folder import RunFolder


def zip_run(folder: RunFolder, form: ExportFormat) -> io.BytesIO:
    """Return a zip file with the export of a run. Raises as `export_run`."""
    archive = io.BytesIO()
    with TemporaryDirectory(prefix="stepscope-") as scratch:
        exported = export_run(folder, Path(scratch), form)
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
            for path in sorted(exported.path.iterdir()):
                file.write(path, f"{exported.path.name}/{path.name}")
    archive.seek(0)
    return archive
