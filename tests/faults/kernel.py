"""The kernel's OOM killer, in a control group with little memory."""

import os
import time
from pathlib import Path
from typing import Any

from harness.records.run import RunState
from harness.supervisor import Supervisor
from tests.faults.scenario import Bench, Measurement, Scenario, UnmeasurableError, log_faults, training_faults

# A control group of the memory controller, v1 or v2, in which this user may make groups.
_PARENT = "STEPSCOPE_FAULTS_CGROUP"
_LIMIT_BYTES = 64 * 2**20
"""What the run may take beyond what it holds when it enters the group."""
_LEAKING: dict[str, Any] = {"max_steps": 700, "inject": "leak:list:1MiB", "oom_policy": "stop"}


def _group() -> Path:
    if (parent := os.environ.get(_PARENT)) is None:
        raise UnmeasurableError(f"no control group was named in {_PARENT}")
    group = Path(parent) / f"stepscope-faults-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        raise UnmeasurableError(f"{group} cannot be made: {error.strerror}") from None
    return group


def _killed_by_the_kernel(bench: Bench) -> Measurement:
    group, home = _group(), bench.new_home("kernel")
    try:
        is_v1 = (group / "memory.limit_in_bytes").exists()
        (group / ("memory.limit_in_bytes" if is_v1 else "memory.max")).write_text(str(_LIMIT_BYTES))
        run = bench.trainer.train(home, _LEAKING)
        run.wait_for_step(10)
        (group / "cgroup.procs").write_text(str(run.pid))
        status = run.wait()
        rows = run.rows()
        verdict = Supervisor(home).status(run.folder)
    finally:
        for _ in range(100):
            if not (group / "cgroup.procs").read_text():
                break
            time.sleep(0.05)
        group.rmdir()
    broken = training_faults(run, bench.losses) + log_faults(run, bench.losses)
    if status != 9 or verdict.state not in (RunState.KILLED, RunState.LOST):
        broken.append(f"ended with status {status}, called {verdict.state}")
    lost = run.steps - len(rows)
    text = f"killed at step {run.steps:,}, {lost} steps lost; called {verdict.state}, the log is sound"
    return Measurement(text, tuple(broken))


SCENARIOS = (
    Scenario(
        "kernel-oom",
        "The kernel's OOM killer ends the training process",
        "As with kill -9: the log is sound, and the run is called killed or lost.",
        _killed_by_the_kernel,
    ),
)
