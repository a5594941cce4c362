"""Which worker of pytest-xdist runs which files of tests.

A page under test goes on while a test waits for it: its figures tick, and the run that it shows trains. The
longer the wait, the more processor time that takes. Browser tests get half of the workers and the processor
first, therefore, and what needs no waiting runs beside them.
"""

import os

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

# A third of the share of a process that is as it was started.
_NICENESS = 5


class WholeRunsApart(LoadFileScheduling):  # type: ignore[misc]  # pytest-xdist is not typed
    """As `--dist loadfile`, but every other worker gets files of whole runs as long as there are any, and the
    rest of the workers the other files."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        waits = self.nodes.index(node) % 2 == 0
        for file in self.workqueue:
            if is_whole_run(file) is waits:
                self.workqueue.move_to_end(file, last=False)
                break
        super()._assign_work_unit(node)


def is_whole_run(nodeid: str) -> bool:
    """Return whether a test waits for a browser or for whole runs most of its time."""
    return nodeid.startswith("tests/e2e/")


def yield_to_whole_runs() -> None:
    """Leave the processor to the workers of whole runs; for good, as only root can take it back."""
    os.nice(max(0, _NICENESS - os.nice(0)))
