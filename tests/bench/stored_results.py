"""Results of a long benchmark, kept line by line, so that one that was interrupted goes on where it was.

The variable STEPSCOPE_BENCH_KEEP names the file; without it nothing is kept.
"""

import json
import os
import threading
from pathlib import Path
from typing import Any


class StoredResults:
    """Plain results by name. Safe to use from any thread."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._results: dict[str, Any] = {}
        if path is not None and path.exists():
            self._results = dict(map(json.loads, path.read_text(encoding="utf-8").splitlines()))

    @classmethod
    def named_in_environment(cls) -> "StoredResults":
        """Those of the file that STEPSCOPE_BENCH_KEEP names."""
        name = os.environ.get("STEPSCOPE_BENCH_KEEP")
        return cls(Path(name) if name else None)

    def __contains__(self, name: str) -> bool:
        return name in self._results

    def __getitem__(self, name: str) -> Any:
        return self._results[name]

    def put(self, name: str, result: Any) -> None:
        """Keep one more."""
        with self._lock:
            self._results[name] = result
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([name, result]) + "\n")
