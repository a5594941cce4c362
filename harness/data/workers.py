"""The loader's worker processes: their start method, their signals, and their exit with the training process.

They start from a *fork server* instead of a fork of the training process, whose threads (writer, sampler),
SQLite connection and CUDA context do not survive a fork. The server imports torch once, so that the workers
of a rebuilt loader start in some tens of milliseconds. Without a fork server (Windows), they are spawned.
"""

import multiprocessing
import os
import signal
import threading
from multiprocessing.context import BaseContext


def worker_context() -> BaseContext:
    """Return the multiprocessing context of worker processes."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.utils.data", "harness.data.loading"])
    return context


def prepare_worker(_worker: int) -> None:
    """Set up a worker process.

    Ctrl-C and SIGTERM reach the whole process group but are meant for the training process, which ends its
    workers. If the training process dies, a thread ends the worker; the DataLoader's own check of the
    parent's pid watches the fork server and would wait forever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
