"""Import of runs: a run's folder from another machine, or a TensorBoard log to compare with."""

from harness.importing.imported import Imported
from harness.importing.importing import import_folder

__all__ = ["Imported", "import_folder"]
