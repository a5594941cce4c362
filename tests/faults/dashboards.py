"""Dashboards that are killed, and two of them on one home."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from harness.identity import read_identity
from harness.records.run import CommandState, RunState
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.reader import LogReader
from harness.supervisor import Supervisor
from tests.faults.forks import Forks
from tests.faults.scenario import Bench, Measurement, Scenario
from tests.supervision import until

_SETTINGS: dict[str, Any] = {
    "model": "mlp",
    "device": "cpu",
    "max_steps": 1_000_000,
    "slow_loader_ms": 20.0,
    "measure_overhead": False,
}
_RIGHT = {RunState.LAUNCHING.value, RunState.RUNNING.value}
_LONGEST_S = 1.2
"""Somewhere between the first and the third drawing of a page."""


def _request(pages: Forks, act: str, home: Home, **values: Any) -> int:
    return pages.start(json.dumps({"act": act, "home": str(home.path), **values}))


def _answers(pages: Forks, pid: int) -> list[str]:
    """Return what a process that does one act said, once it has ended."""
    until(lambda: pages.ended(pid), lambda status: status is not None)
    return [line.removeprefix("did ") for line in pages.said(pid)]


def _logged(log: Path) -> int:
    with LogReader(log) as reader:
        return reader.extent().last or 0


def _wait_for_steps_after(log: Path, last: int) -> int:
    """The last step, once there is one after `last`."""
    return until(lambda: _logged(log), lambda step: step > last)


def _pictures(pages: Forks, pid: int) -> list[str]:
    """Return what a killed dashboard said of each page that it drew."""
    until(lambda: pages.ended(pid), lambda status: status is not None)
    return [line.removeprefix("drew ") for line in pages.said(pid) if line.startswith("drew ")]


def _stopped(supervisor: Supervisor, run: RunFolder) -> tuple[int, list[str]]:
    """Stop a run that another supervisor started; its last step, and what is wrong with its end."""
    supervisor.stop(run)
    with LogReader(run.log) as log:
        log.check()
        extent = log.extent()
    wrong = []
    if extent.steps != extent.last:
        wrong.append(f"{extent.steps} of {extent.last} steps are in the log")
    state = supervisor.status(run).state
    if state is not RunState.STOPPED:
        wrong.append(f"stopped by a dashboard that did not start it, it is called {state}")
    return extent.last or 0, wrong


def _killed(bench: Bench) -> Measurement:
    kills, chance, home, pages = (
        bench.count(100, 3),
        bench.chance("pages"),
        bench.new_home("pages"),
        bench.pages,
    )
    first = _request(pages, "start", home, settings=_SETTINGS, request_id="one", stays=True)
    until(lambda: pages.said(first), bool)
    supervisor = Supervisor(home)
    run = home.runs()[0]
    until(lambda: supervisor.status(run).state, lambda state: state is RunState.RUNNING)
    process, broken, drawn, before = read_identity(run.process), [], 0, 0
    watcher = first
    for kill in range(kills):
        time.sleep(chance.random() * _LONGEST_S)
        os.kill(watcher, signal.SIGKILL)
        pictures = _pictures(pages, watcher)
        drawn += len(pictures)
        broken += [f"kill {kill}: the page failed: {problem}" for problem in set(pictures) - _RIGHT]
        before = _wait_for_steps_after(run.log, before)
        watcher = _request(pages, "watch", home, run=run.run_id)
    until(lambda: pages.said(watcher), bool)
    adopted = supervisor.status(run)
    if adopted.state is not RunState.RUNNING or read_identity(run.process) != process:
        broken.append(f"after {kills} kills it is called {adopted.state}")
    steps, wrong = _stopped(supervisor, run)
    text = (
        f"{kills} dashboards killed, {drawn} pages drawn meanwhile: the run that the first one started went "
        f"on, all its {steps:,} steps are in the log, the last dashboard showed and stopped it"
    )
    return Measurement(text, (*broken, *wrong))


def _two(bench: Bench) -> Measurement:
    home, pages, broken = bench.new_home("two"), bench.pages, []
    starts = [
        _request(pages, "start", home, settings=_SETTINGS, request_id="one", stays=False) for _ in range(2)
    ]
    started = {line for pid in starts for line in _answers(pages, pid)}
    if len(started) != 1 or len(home.runs()) != 1:
        broken.append(f"one form sent from two dashboards made {len(home.runs())} runs")
    run = home.runs()[0]
    supervisor = Supervisor(home)
    until(lambda: supervisor.status(run).state, lambda state: state is RunState.RUNNING)
    values = [{"batch_size": 16}, {"learning_rate": 0.02}]
    sent = [_request(pages, "set", home, run=run.run_id, values=one) for one in values]
    commands = {line for pid in sent for line in _answers(pages, pid)}
    answers = until(lambda: _applied(run.log), lambda acks: set(acks) >= commands)
    if sorted(answers) != sorted(commands):
        broken.append(f"{len(commands)} commands got {len(answers)} answers")
    stops = [_request(pages, "stop", home, run=run.run_id) for _ in range(2)]
    stages = sorted(line for pid in stops for line in _answers(pages, pid))
    lists = [_request(pages, "list", home) for _ in range(2)]
    states = {line for pid in lists for line in _answers(pages, pid)}
    if states != {f"{run.run_id} {RunState.STOPPED}"}:
        broken.append(f"afterwards they say {states}")
    text = (
        f"the same form sent twice at once made {len(home.runs())} run; {len(commands)} settings from two "
        f"dashboards were each applied once; both stopped it ({', '.join(stages)}) and both call it stopped"
    )
    return Measurement(text, tuple(broken))


def _applied(log: Path) -> list[str]:
    with LogReader(log) as reader:
        return [ack.command_id for ack in reader.acks() if ack.state == CommandState.APPLIED]


SCENARIOS = (
    Scenario(
        "dashboard-kills",
        "kill -9 of the dashboard, at random moments, again and again",
        "The run goes on, and each new dashboard finds it, shows it and can stop it.",
        _killed,
        is_in_tests=False,
    ),
    Scenario(
        "two-dashboards",
        "Two dashboards on one home start, steer and stop at the same moment",
        "One form is one run, each request is answered once, and both say the same.",
        _two,
        is_in_tests=False,
    ),
)
