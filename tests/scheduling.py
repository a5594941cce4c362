"""The assignment of files of tests to workers (tests/workers.py).

A page under test goes on while a test waits for it: its figures tick, and the run that it shows trains. The
longer the wait, the more processor time that takes. Browser tests get half of the workers and the processor
first, therefore, and what needs no waiting runs beside them.
"""

import os
from collections import deque
from collections.abc import Sequence

Positions = tuple[int, ...]
"""Tests of one file, as their places in the session."""

# A third of the share of a process that is as it was started.
_NICENESS = 5


class FilesLeft:
    """The files of tests that no worker has yet; a file stays with one worker."""

    def __init__(self, nodeids: Sequence[str]) -> None:
        """`nodeids` are those of all tests, in the order in which they are to begin."""
        self._nodeids = nodeids
        files: dict[str, list[int]] = {}
        for position, nodeid in enumerate(nodeids):
            files.setdefault(nodeid.split("::")[0], []).append(position)
        self._files = deque(map(tuple, files.values()))

    def take(self, worker: int) -> Positions:
        """Return the next file for a worker, empty when none is left. Every other worker gets those of whole
        runs as long as there are any, and the rest of the workers the other files."""
        waits = worker % 2 == 0
        for file in self._files:
            if is_whole_run(self._nodeids[file[0]]) is waits:
                self._files.remove(file)
                return file
        return self._files.popleft() if self._files else ()

    def put_back(self, rest: Positions) -> None:
        """Let what is left of a file be the next one."""
        if rest:
            self._files.appendleft(rest)


def is_whole_run(nodeid: str) -> bool:
    """Return whether a test waits for a browser or for whole runs most of its time."""
    return nodeid.startswith("tests/e2e/")


def yield_to_whole_runs() -> None:
    """Leave the processor to the workers of whole runs; for good, as only root can take it back."""
    os.nice(max(0, _NICENESS - os.nice(0)))
