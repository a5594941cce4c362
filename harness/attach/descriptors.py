"""Files of Stepscope among those that a script closes.

`os.closerange(3, …)` in a script is meant for the files that its process has inherited. It would close the
log under SQLite too, which then writes into whatever file of the script has its number next.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def keeping_files_open(locate: Callable[[], Path | None]) -> Iterator[None]:
    """Until the context ends, have `os.closerange` leave the files of the run open in this process. `locate`
    returns the folder of the run; None when it was deleted. Without /proc it closes them."""
    pid, close_range = os.getpid(), os.closerange

    def close_others(first: int, end: int, /) -> None:
        own = _own_files(locate()) if os.getpid() == pid else []
        for descriptor in own:
            if first <= descriptor < end:
                close_range(first, descriptor)
                first = descriptor + 1
        close_range(first, end)

    os.closerange = close_others
    try:
        yield
    finally:
        if os.closerange is close_others:
            os.closerange = close_range


def _own_files(folder: Path | None) -> list[int]:
    """Return the descriptors of the run's folder and of the files in it, and of the process's memory figures,
    in order."""
    figures, own = f"/proc/{os.getpid()}/statm", []
    for link in Path("/proc/self/fd").glob("*"):
        try:
            target = Path(os.readlink(link))
        except OSError:  # It was the one of the listing itself.
            continue
        if str(target) == figures or (folder is not None and target.is_relative_to(folder.resolve())):
            own.append(int(link.name))
    return sorted(own)
