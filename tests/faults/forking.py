"""The loop of a process that forks another per request: whatever it imported, no child imports again.

It reads a request per line of stdin and writes "PID started", what a child reports, and "PID ended STATUS" to
stdout, the status as `waitpid` returns it.
"""

import gc
import os
import select
import sys
import traceback
from collections.abc import Callable

_POLL_S = 0.01
_READ_BYTES = 65_536


def report(pid: int, text: str) -> None:
    """Write one line about the child `pid`."""
    os.write(1, f"{pid} {text}\n".encode())


def fork_per_line(work: Callable[[str], int]) -> None:
    """Fork a child for each line, which does `work` and exits with its code; until stdin and every child have
    ended. The caller has one thread, so that a fork is as good as a fresh process."""
    gc.collect()
    gc.freeze()
    rest, children, is_open = b"", set[int](), True
    while is_open or children:
        ready, _, _ = select.select([0] if is_open else [], [], [], _POLL_S)
        if ready:
            data = os.read(0, _READ_BYTES)
            is_open = bool(data)
            *lines, rest = (rest + data).split(b"\n")
            children |= {_fork(work, line.decode()) for line in lines}
        for child in list(children):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                children.discard(child)
                report(child, f"ended {status}")


def _fork(work: Callable[[str], int], line: str) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = work(line)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            raise
        finally:
            os._exit(code)
    report(child, "started")
    return child
