"""Export of runs: their tables as CSV, JSON lines, Parquet or TensorBoard event files."""

from harness.export.archive import zip_runs
from harness.export.exporting import Exported, export_run, print_table
from harness.export.formats import ExportFormat
from harness.export.tables import TABLES

__all__ = ["TABLES", "ExportFormat", "Exported", "export_run", "print_table", "zip_runs"]
