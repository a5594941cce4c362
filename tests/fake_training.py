"""A stand-in for the training process, without torch: `python fake_training.py MODE -m harness _run FOLDER`.

obey: steps until told to stop; deaf: ignores the command and SIGTERM; finish: ends by itself; fail: ends with
an error before its log exists; refuse: ends with a usage error; hang: its heart stops beating; slow: never
takes its lock.
"""

import faulthandler
import os
import signal
import sys
import time
from pathlib import Path

from harness.identity import identify_self, write_identity
from harness.records.run import CommandKind, RunState
from harness.store.control import ControlLog
from harness.store.folder import RunFolder
from harness.store.folder_handle import FolderHandle
from harness.store.liveness import Liveness
from harness.store.writer import LogWriter
from tests.store_factories import a_run, a_step


def main(mode: str, folder: RunFolder) -> int:
    print("hello from the training process")
    if mode == "fail":
        raise ValueError("no such thing as 7")
    if mode == "refuse":
        print("stepscope: device cannot be 'cuda:7'; allowed: auto, cpu.")
        return 2
    if mode == "slow":
        time.sleep(600)
    if mode == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    numbers = iter(range(1, 1_000_000))
    run = a_run(folder.run_id, folder.request().name)._replace(settings=folder.request().settings_json)
    with FolderHandle(folder) as handle, Liveness.hold(handle.steady.alive) as alive:
        write_identity(folder.process, identify_self(os.environ))
        feed = lambda: [a_step(next(numbers))]  # noqa: E731
        with (
            LogWriter(folder.log, run, feed, time.monotonic_ns, poll_s=0.02) as log,
            ControlLog(folder) as requests,
        ):
            log.set_state(RunState.RUNNING, "Training.")
            if mode == "hang":
                os.utime(folder.alive, (1, 1))
                time.sleep(600)
            while True:
                alive.beat()
                message = any(command.kind == CommandKind.STOP for _, command in requests.commands())
                if mode == "finish" or (message and mode == "obey"):
                    state = RunState.FINISHED if mode == "finish" else RunState.STOPPED
                    log.finish(state, f"{state.value.capitalize()} on request.", time.time_ns())
                    return 0
                time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], RunFolder(Path(sys.argv[-1]))))
