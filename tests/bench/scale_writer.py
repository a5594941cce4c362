"""Live runs from one process: `python -m tests.bench.scale_writer HOME RUNS STEPS_PER_S`. Each has a lock, a
heartbeat and a log, to which steps and one sample of a GPU and of the host are appended per second."""

import sys
import time
from contextlib import ExitStack
from pathlib import Path

from harness.records.run import RunState
from harness.settings.resolve import resolve
from harness.store.appender import LogAppender
from harness.store.home import Home
from harness.store.inserts import StateChange
from harness.store.liveness import Liveness
from tests.store_factories import a_device_sample, a_host_sample, a_run, a_step


def main(home: Home, runs: int, steps_per_s: int) -> None:
    settings = resolve({"model": "mlp"})
    with ExitStack() as stack:
        logs = []
        for at in range(runs):
            folder = home.create(f"rank-{at}", settings, time.time_ns())
            alive = stack.enter_context(Liveness.hold(folder.alive))
            row = a_run(folder.run_id, f"rank-{at}")._replace(settings=settings.model_dump_json())
            log = stack.enter_context(LogAppender(folder.log, row))
            log.append(states=[StateChange(RunState.RUNNING, "Training.", None, None)])
            logs.append((alive, log))
        second = 0
        began_s = time.monotonic()
        while True:
            for at, (alive, log) in enumerate(logs):
                alive.beat()
                first = second * steps_per_s + 1
                steps = [a_step(step) for step in range(first, first + steps_per_s)]
                samples = a_device_sample(second, first, f"GPU-{at}"), a_host_sample(second, first)
                log.append(steps, samples)
            second += 1
            if second == 1:
                print("ready", flush=True)
            time.sleep(max(0.0, began_s + second - time.monotonic()))


if __name__ == "__main__":
    main(Home(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3]))
