"""The origin of an imported run."""

from enum import StrEnum
from typing import NamedTuple


class ImportSource(StrEnum):
    """The kinds of data that can be imported."""

    RUN = "run folder"
    TENSORBOARD = "TensorBoard log"


class ImportOrigin(NamedTuple):
    """The source of an imported run. No process of this machine belongs to such a run."""

    source: ImportSource
    # The folder that was imported.
    path: str
    imported_unix_ns: int
