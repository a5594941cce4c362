"""The loader's worker processes: how they start, what they ignore, and that they never outlive training.

They start from a *fork server*, not by forking the training process: that one has threads (writer, sampler),
an SQLite connection and a CUDA context, none of which survives a fork. The server imports torch once, so
that a rebuilt loader has its workers in some tens of milliseconds. Where there is none (Windows), they spawn.
"""

import multiprocessing
import os
import signal
import threading
from multiprocessing.context import BaseContext


def worker_context() -> BaseContext:
    """How worker processes start here."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.utils.data", "harness.data.loading"])
    return context


def prepare_worker(_worker: int) -> None:
    """Runs first in each worker.

    Ctrl-C and SIGTERM go to the whole process group, and mean the training process: it ends its workers.
    Should it die instead, a thread that waits for just that ends the worker; the loader's own check, whether
    the parent's pid has changed, watches the fork server and would wait for ever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
