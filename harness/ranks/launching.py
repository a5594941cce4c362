"""Starts the ranks of a run on this machine, by torchrun's own agent, and waits for their end."""

import json
import os
import signal
import uuid
from collections.abc import Sequence

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from harness.device.host.cores import usable_cores
from harness.errors import INTERRUPTED_CODE
from harness.files.regular import write_private
from harness.records.ranks import RankEnd
from harness.store.folder import RunFolder

_THREADS = "OMP_NUM_THREADS"
_SIGNAL_CODE = 128


def launch(folder: RunFolder | None, command: Sequence[str], ranks: int) -> int:
    """Start `command` as so many ranks, and return the exit code of the run: that of the rank that failed
    first. The exit codes of failed ranks are written into the run's folder, if there is one."""
    os.environ.setdefault(_THREADS, str(max(1, (usable_cores() or 1) // ranks)))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(),
    )
    try:
        elastic_launch(config, command[0])(*command[1:])
    except ChildFailedError as error:
        ends = [RankEnd(rank, failure.exitcode) for rank, failure in error.failures.items()]
        if folder is not None:
            write_private(folder.rank_ends, json.dumps([end._asdict() for end in ends]) + "\n")
        first = cause(ends).returncode
        return first if first >= 0 else _SIGNAL_CODE - first
    except SignalException as error:
        return INTERRUPTED_CODE if error.sigval is signal.SIGINT else _SIGNAL_CODE + int(error.sigval)
    return 0


def cause(ends: Sequence[RankEnd]) -> RankEnd:
    """Return the end that made the others fail, as far as exit codes say it: a signal, else a code of its
    own, else 1, with which a rank ends that has lost the connection to another one."""

    def order(end: RankEnd) -> tuple[int, int]:
        own = 0 if end.returncode < 0 and end.returncode != -signal.SIGTERM else 1 + (end.returncode == 1)
        return own, end.rank

    return min(ends, key=order)
