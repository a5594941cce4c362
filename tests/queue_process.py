"""A worker of a queue in a process of its own, over stand-in runs, that is killed at a point of a start:
`python queue_process.py HOME POINT`. Points: begun (the intent is written), folder (there is a run's folder),
process (there is a process), ended (all but the last write)."""

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.queue import worker as worker_module
from harness.queue.worker import QueueWorker
from harness.store.home import Home
from harness.store.queue_log import QueueLog
from harness.supervisor import Supervisor
from harness.supervisor.launch import Process
from tests.queue_factories import Forecasts, Machines, a_cpu, a_device
from tests.supervision import SupervisorBench


def die(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def main(home: Path, point: str) -> None:
    bench = SupervisorBench(home)
    bench.mode = "finish"

    def spawn(command: list[str], environ: Mapping[str, str], output: Path) -> Process:
        if point == "folder":
            die()
        process = bench.spawn(command, environ, output)
        if point == "process":
            die()
        return process

    if point == "begun":
        vars(worker_module)["start_entry"] = die
    if point == "ended":
        QueueLog.end_start = die  # type: ignore[method-assign]
    supervisor = Supervisor(Home(home), spawn=spawn)
    QueueWorker(supervisor, Machines(a_device(a_cpu())), Forecasts()).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
