"""A stand-in for a training process with a long past: `python -m tests.bench.live_log FOLDER STEPS`.

Writes STEPS steps at once and then goes on at twenty a second, written as often as a real run's are. Says
"ready" on stdout, then of every later step its number and when it ended, in nanoseconds of wall time.
"""

import json
import os
import sys
import time
from pathlib import Path

from harness.demo.machine import FACTS, Faults, SimulatedGpu
from harness.demo.telemetry import SimulatedTelemetry
from harness.identity import identify_self, write_identity
from harness.records.run import RunState, SettingsRow
from harness.settings.spec import from_json
from harness.store.appender import LogAppender
from harness.store.folder import RunFolder
from harness.store.liveness import Liveness
from harness.store.writer import POLL_S
from tests.store_factories import a_run

_BLOCK = 16_384
_STEPS_A_SECOND = 20


def main(folder: RunFolder, steps: int) -> None:
    """Write until killed."""
    request = folder.request()
    settings = from_json(request.settings_json)
    row = a_run(folder.run_id, request.name)._replace(
        settings=request.settings_json,
        device=json.dumps(FACTS._asdict()),
        state=RunState.RUNNING,
        state_message="Training.",
        started_unix_ns=time.time_ns(),
    )
    machine, sampler = SimulatedGpu(0, Faults()), SimulatedTelemetry(0)
    with Liveness.hold(folder.alive) as alive, LogAppender(folder.log, row) as log:
        write_identity(folder.process, identify_self(os.environ))
        log.append(rows=[SettingsRow(0, 1, 0, request.settings_json, "{}", None)])

        def train(first: int, count: int) -> None:
            rows = machine.train(settings, 0, first, count, first)
            log.append(rows, sampler.samples(rows))
            alive.beat()

        for first in range(1, steps + 1, _BLOCK):
            train(first, min(_BLOCK, steps + 1 - first))
        print("ready", flush=True)
        written, begun_s = steps, time.time()
        while True:
            time.sleep(POLL_S)
            due = steps + int((time.time() - begun_s) * _STEPS_A_SECOND)
            if due > written:
                train(written + 1, due - written)
            for step in range(written + 1, due + 1):
                ended_s = begun_s + (step - steps) / _STEPS_A_SECOND
                print(step, int(ended_s * 1e9), flush=True)
            written = due


if __name__ == "__main__":
    main(RunFolder(Path(sys.argv[1])), int(sys.argv[2]))
