"""A wall clock that jumps, and a machine that was booted anew."""

import itertools
import json
import signal
import subprocess
import time
from typing import Any

from harness.errors import RunStateError
from harness.identity import start_ticks
from harness.records.run import RunState
from harness.supervisor import Supervisor
from tests.faults.scenario import Bench, Measurement, Scenario, log_faults, training_faults

_PACED: dict[str, Any] = {"max_steps": 500, "slow_loader_ms": 8.0}
_AT_STEP = 100
_JUMP_S = 3600
_SETTLED_S = 2.5
"""A heartbeat a second carries the new time."""


def _jump(bench: Bench, shift_s: int, losses: list[float]) -> tuple[str, list[str]]:
    home = bench.new_home("clock")
    run = bench.trainer.train(home, _PACED, clock_shift_s=shift_s, at_step=_AT_STEP)
    run.wait_for_step(_AT_STEP)
    watcher = Supervisor(home, clock_ns=lambda: time.time_ns() + shift_s * 10**9)
    jumped_s, states, settled = time.monotonic(), [], []
    while run.status is None:
        state = watcher.status(run.folder).state
        states.append(state)
        if time.monotonic() - jumped_s > _SETTLED_S and run.status is None:
            settled.append(state)
        time.sleep(0.05)
    rows, wrong = run.rows(), training_faults(run, losses) + log_faults(run, losses)
    direction = f"{shift_s:+d} s"
    if any(state.is_over and state is not RunState.FINISHED for state in states):
        wrong.append(f"called {', '.join(sorted(set(states)))} while it ran")
    if not settled or set(settled) - {RunState.RUNNING, RunState.FINISHED}:
        wrong.append(f"{_SETTLED_S} s later called {', '.join(sorted(set(settled))) or 'nothing yet'}")
    if run.status != 0 or len(rows) != _PACED["max_steps"]:
        wrong.append(f"ended with status {run.status}, {len(rows)} of {_PACED['max_steps']} steps logged")
    if any(later.t_ns <= earlier.t_ns for earlier, later in itertools.pairwise(rows)):
        wrong.append("the steps' times do not increase")
    return direction, [f"{direction}: {text}" for text in wrong]


def _jumps(bench: Bench) -> Measurement:
    losses = bench.losses
    jumps = [_jump(bench, shift_s, losses) for shift_s in (-_JUMP_S, _JUMP_S)[: bench.count(2, 1)]]
    directions = " and ".join(direction for direction, _ in jumps)
    text = (
        f"{directions} at step {_AT_STEP}: called running {_SETTLED_S} s later and never ended; the "
        f"steps' times increase, all {_PACED['max_steps']} steps are in the log, the loss curve is "
        "identical to the last bit"
    )
    return Measurement(text, tuple(fault for _, wrong in jumps for fault in wrong))


def _reboot(bench: Bench) -> Measurement:
    """The process is gone, another boot has another id, and its process number belongs to somebody else."""
    home = bench.new_home("reboot")
    run = bench.trainer.train(home, _PACED | {"max_steps": 100_000})
    run.wait_for_step(_AT_STEP)
    run.send(signal.SIGKILL)
    run.wait()
    supervisor = Supervisor(home)
    broken = []
    with subprocess.Popen(["sleep", "300"]) as stranger:
        try:
            identity = json.loads(run.folder.process.read_text(encoding="utf-8"))
            identity |= {
                "boot_id": "00000000-0000-0000-0000-000000000000",
                "pid": stranger.pid,
                "start_ticks": start_ticks(stranger.pid),
            }
            run.folder.process.write_text(json.dumps(identity), encoding="utf-8")
            state = supervisor.status(run.folder).state
            if state not in (RunState.LOST, RunState.KILLED):
                broken.append(f"called {state}")
            try:
                supervisor.stop(run.folder, sleep=lambda _: None)
                broken.append("`stop` was not refused")
            except RunStateError:
                pass
            if stranger.poll() is not None:
                broken.append("a stranger's process was ended")
            supervisor.delete(run.folder)
        finally:
            stranger.kill()
    return Measurement(
        f"called {state}; `stop` is refused, the stranger lives, the run can be deleted", tuple(broken)
    )


SCENARIOS = (
    Scenario(
        "clock-jumps",
        "The wall clock jumps an hour ahead, or back, in the training process and for its watcher",
        "The run is never called ended, and is called running again with the next heartbeat; times within "
        "a run do not depend on the wall clock.",
        _jumps,
        is_long=True,
    ),
    Scenario(
        "reboot",
        "The machine was booted anew, and the run's process number is somebody else's",
        "The run is lost, nobody is signaled, and it can be deleted.",
        _reboot,
    ),
)
