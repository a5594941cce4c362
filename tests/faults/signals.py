"""Signals that a training process can see, and being stopped without one."""

import signal
import time
from typing import Any

from harness.records.run import RunState
from harness.store.reader import LogReader
from harness.supervisor import Supervisor
from tests.faults.scenario import Bench, Measurement, Scenario, log_faults, training_faults

_PACED: dict[str, Any] = {"max_steps": 300, "slow_loader_ms": 5.0}
_ENDLESS = _PACED | {"max_steps": 100_000}
_AT_STEP = 50
_SILENCE_S = 20.0


def _ended_by_signals(bench: Bench) -> Measurement:
    losses = bench.losses
    home = bench.new_home("signals")
    broken, counts = [], []
    numbers = (signal.SIGHUP,) if bench.is_quick else (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    for number in numbers:
        run = bench.trainer.train(home, _ENDLESS)
        run.wait_for_step(_AT_STEP)
        sent_s = time.monotonic()
        run.send(number)
        status = run.wait()
        counts.append(f"{number.name} after {time.monotonic() - sent_s:.1f} s")
        rows = run.rows()
        with LogReader(run.folder.log) as log:
            state = log.run().state
        if (status, state) != (0, RunState.STOPPED):
            broken.append(f"{number.name}: ended with status {status} as {state}")
        if len(rows) != run.steps:
            broken.append(f"{number.name}: {len(rows)} of {run.steps} steps are in the log")
        broken += training_faults(run, losses) + log_faults(run, losses)
    return Measurement(f"ended in order by {', '.join(counts)}; every step is in the log", tuple(broken))


def _held_and_resumed(bench: Bench) -> Measurement:
    losses = bench.losses
    home = bench.new_home("held")
    run = bench.trainer.train(home, _PACED)
    run.wait_for_step(_AT_STEP)
    run.send(signal.SIGSTOP)
    later = Supervisor(home, clock_ns=lambda: time.time_ns() + int(_SILENCE_S * 1e9))
    meanwhile = later.status(run.folder)
    run.send(signal.SIGCONT)
    status = run.wait()
    afterwards = Supervisor(home).status(run.folder)
    broken = training_faults(run, losses) + log_faults(run, losses)
    if meanwhile.state is not RunState.STALLED:
        broken.append(f"after {_SILENCE_S:g} s without a sign of life it is called {meanwhile.state}")
    if status != 0 or afterwards.state is not RunState.FINISHED or len(run.rows()) != _PACED["max_steps"]:
        broken.append(f"ended with status {status} as {afterwards.state}, {len(run.rows())} steps logged")
    text = (
        f"called {meanwhile.state} while stopped; then it finished, all {_PACED['max_steps']} steps are in "
        "the log, the loss curve is identical to the last bit"
    )
    return Measurement(text, tuple(broken))


SCENARIOS = (
    Scenario(
        "ending-signals",
        "SIGTERM, SIGINT or SIGHUP to a training process",
        "It stops after its step, in order; every step is in the log.",
        _ended_by_signals,
        is_long=True,
    ),
    Scenario(
        "sigstop",
        "SIGSTOP, and SIGCONT later",
        "Called stalled meanwhile; then training goes on as if nothing had been.",
        _held_and_resumed,
        is_in_tests=False,
    ),
)
