"""The URI of an SQLite file, for a connection that does not create it, or only reads it."""

import os
from pathlib import Path
from urllib.parse import quote


def sqlite_uri(path: Path, parameters: str) -> str:
    """Return the URI of the file at `path` with `parameters`, such as "mode=ro". A path may have any bytes:
    also "?", "#" and "%", and some that are no UTF-8."""
    return f"file:{quote(os.fsencode(path))}?{parameters}"
