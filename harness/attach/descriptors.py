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
    returns the folder of the run; None when it was deleted. If files cannot be listed it closes them."""
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
    in order; none if they cannot be listed. Raises nothing: a script calls it."""
    figures, own = f"/proc/{os.getpid()}/statm", []
    inside = None if folder is None else os.path.realpath(folder)
    try:
        numbers = os.listdir("/proc/self/fd")
    except OSError:  # Without /proc, or a descriptor to list it with.
        return []
    for number in numbers:
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # It was the one of the listing itself.
            continue
        if target == figures or (inside is not None and Path(target).is_relative_to(inside)):
            own.append(int(number))
    return sorted(own)
