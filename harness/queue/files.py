"""The files of the queue in the home."""

from pathlib import Path

from harness.store.home import Home
from harness.store.queue_log import QueueLog


def queue_log(home: Home) -> QueueLog:
    """Return the queue of the home."""
    return QueueLog(home.path / "queue.sqlite3")


def worker_lock(home: Home) -> Path:
    """Return the file that the worker locks while it lives."""
    return home.path / "queue-worker"


def worker_output(home: Home) -> Path:
    """Return the file with the output of workers."""
    return home.path / "queue.log"
