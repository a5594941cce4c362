"""Real runs in which a setting without effect changes now and then, and with some of these changes the work
that a step has to do: changes with a known effect."""

import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from typing import Any, NamedTuple

import torch
from torch import Tensor

from harness.data.source import open_source
from harness.device.cpu.device import CpuDevice
from harness.models.building import build_model
from harness.records.run import CommandKind, CommandRow
from harness.settings import Settings
from harness.settings.resolve import resolve
from harness.store.control import ControlLog
from harness.store.folder import RunFolder
from harness.train.workload import Workload
from harness.watch.steps import Steps
from tests.bench.rig import Recording

# Work added to a step, as shares of the undisturbed step.
SHARES = (0.05, 0.10)
# A setting changes after a random time between these.
SEGMENT_S = (10.6, 12.0)
# So many of the changes change nothing.
NOTHING = 0.65
# The other process works, and rests, for random times between these.
BURST_S = (0.05, 0.5)
_CALIBRATION_S = 12.0
_WARM_UP = 200
_TIMED_CALLS, _TIMED_ROUNDS = 30, 1_000
_LEAST_ROUNDS = 1
_MANY_STEPS = 10_000_000
_LEARNING_RATES = (0.0010, 0.0011)
_TRUTH = "truth.json"
_HOG = """import random, sys, time
rng = random.Random(int(sys.argv[1])); low, high = float(sys.argv[2]), float(sys.argv[3])
while True:
    end = time.monotonic() + rng.uniform(low, high)
    while time.monotonic() < end: sum(range(1000))
    time.sleep(rng.uniform(low, high))
"""


class Plan(NamedTuple):
    """One run, on `cores` where any are named. `hogs` other processes work half of the time on the same
    ones."""

    settings: dict[str, Any]
    threads: int
    hogs: int
    seconds: float
    seed: int
    cores: Sequence[int] = ()


class Truth(NamedTuple):
    """The truth about a run: the machine's load average of the last five minutes at its end, and for each
    version of the settings the intended share of added work and the measured one."""

    load: float
    intended: Sequence[float]
    measured: Sequence[float]


class Injection(NamedTuple):
    """Rounds of work in each step, and the durations of the steps so far, in ns."""

    share: float
    rounds: int
    # From one step to the next, without the call, and that of the call.
    rest_ns: list[int]
    call_ns: list[int]

    def measured_share(self, least_ns: float) -> float:
        """Return the work beyond that of a call of `least_ns` as a share of a step with such a call."""
        if self.rounds == _LEAST_ROUNDS:
            return 0.0
        return (_undisturbed(self.call_ns) - least_ns) / (_undisturbed(self.rest_ns) + least_ns)


class LoadedWorkload(Workload):
    """A model whose forward pass also computes rounds of SHA-256, in one call of PBKDF2 without the
    interpreter's lock: each round takes the same processor time and no memory. Interruptions of training
    delay it as well. Every call is timed, so that the added share is measured within the same steps.

    Any such call makes the rest of the step some 15 us longer, by its traces in caches and branch predictors.
    Steps without added work have a call of the fewest rounds, so that steps differ by the rounds alone."""

    def prepare(self, shares: Iterator[float]) -> None:
        """Add work from now on: of `shares`, one for each change of settings to come."""
        self._shares = shares
        self._round_ns = _time_round()
        self.injections = [Injection(0.0, _LEAST_ROUNDS, [], [])]
        self._add_work()

    def reconfigure(self, settings: Settings) -> None:
        """Reconfigure as any workload; the next share takes effect."""
        super().reconfigure(settings)
        last, share = self.injections[-1], next(self._shares)
        added = round(share * _undisturbed(last.rest_ns) / self._round_ns)
        self.injections.append(Injection(share, _LEAST_ROUNDS + added, [], []))
        self._add_work()

    @property
    def measured_shares(self) -> list[float]:
        """The share of work added under each version of the settings, from the timed calls."""
        least_ns = _undisturbed(self.injections[0].call_ns)
        return [injection.measured_share(least_ns) for injection in self.injections]

    def _add_work(self) -> None:
        _, rounds, rest_ns, call_ns = self.injections[-1]
        forward, clock_ns, ended_ns = self.forward, time.perf_counter_ns, 0

        def loaded(inputs: Tensor, targets: Tensor) -> Tensor:
            nonlocal ended_ns
            began_ns = clock_ns()
            if ended_ns:
                rest_ns.append(began_ns - ended_ns)
            compute(rounds)
            ended_ns = clock_ns()
            call_ns.append(ended_ns - began_ns)
            return forward(inputs, targets)

        self.forward = loaded


def compute(rounds: int) -> None:
    """Rounds of SHA-256."""
    hashlib.pbkdf2_hmac("sha256", b"work", b"more", rounds)


def train(plan: Plan, folder: Path) -> None:
    """Train in this process, and write the log and the truth into `folder`."""
    if plan.cores:
        os.sched_setaffinity(0, plan.cores)
    torch.set_num_threads(plan.threads)
    rng = random.Random(plan.seed)
    settings = resolve({**plan.settings, "seed": plan.seed})
    torch.set_flush_denormal(settings.flush_denormal)
    device = CpuDevice.open()
    source = open_source(settings)
    torch.manual_seed(settings.seed)
    device.begin_memory()
    workload = LoadedWorkload(settings, device, build_model(settings, source.shape), source)
    workload.prepare(_shares(rng))
    try:
        with hogs(plan.hogs, plan.seed), Recording(workload, device, folder) as recording:
            changes = _changes(RunFolder(folder), plan.seconds, rng)

            def around(steps: Steps) -> None:
                proceed = steps.proceed

                def with_changes(step: int) -> bool:
                    next(changes)
                    return proceed(step)

                steps.proceed = with_changes

            recording.train(_MANY_STEPS, around)
        assert not recording.errors, recording.errors
    finally:
        workload.close()
    intended = [injection.share for injection in workload.injections]
    values = Truth(os.getloadavg()[1], intended, workload.measured_shares)
    (folder / _TRUTH).write_text(json.dumps(values), encoding="utf-8")


def truth(folder: Path) -> Truth:
    """The truth about the run in `folder`."""
    return Truth(*json.loads((folder / _TRUTH).read_text(encoding="utf-8")))


def has_ended(folder: Path) -> bool:
    """Return whether the run in `folder` was trained to its end."""
    return (folder / _TRUTH).exists()


def _shares(rng: random.Random) -> Iterator[float]:
    """Most changes change nothing; the others add or remove one of the shares."""
    share = 0.0
    while True:
        if rng.random() >= NOTHING:
            share = rng.choice(SHARES) if share == 0 else 0.0
        yield share


def _changes(folder: RunFolder, seconds: float, rng: random.Random) -> Iterator[None]:
    """Asked before each step: sends the next change once it is due, and after `seconds` the end."""
    with ControlLog(folder) as control:

        def send(kind: CommandKind, number: int, values: dict[str, float]) -> None:
            control.send(CommandRow(f"c{number}", time.time_ns(), kind, json.dumps(values), "bench"))

        now_s = time.monotonic()
        number, end_s, due_s = 0, now_s + seconds, now_s + rng.uniform(*SEGMENT_S)
        while now_s < end_s:
            if now_s >= due_s:
                number += 1
                send(CommandKind.SET, number, {"learning_rate": _LEARNING_RATES[number % 2]})
                due_s = now_s + rng.uniform(*SEGMENT_S)
            yield
            now_s = time.monotonic()
        send(CommandKind.STOP, number + 1, {})
        while True:
            yield


class Work(NamedTuple):
    """Calibrated work: the undisturbed step without any, and how much longer it gets with some: `fixed_ns`
    for the call and `round_ns` for each round."""

    step_ns: float
    fixed_ns: float
    round_ns: float

    def rounds(self, share: float) -> int:
        """The rounds that make the undisturbed step longer by `share`."""
        return max(1, round((share * self.step_ns - self.fixed_ns) / self.round_ns)) if share else 0


def calibrate(workload: Workload) -> Work:
    """Take steps without work and with two amounts of it in turns. On a machine that others use, a low
    quantile is what comes nearest to the undisturbed times."""
    guess_ns = _time_round()
    _steps_ns(workload, [0], _WARM_UP)
    (plain_ns,) = _steps_ns(workload, [0], _WARM_UP)
    few, many = (max(1, round(share * plain_ns / guess_ns)) for share in SHARES)
    many = max(many, few + 1)  # On a busy machine a round seems to take as long as a step.
    step_ns, few_ns, many_ns = _steps_ns(workload, [0, few, many], 0, _CALIBRATION_S)
    round_ns = (many_ns - few_ns) / (many - few)
    return Work(step_ns, few_ns - step_ns - few * round_ns, round_ns)


def _steps_ns(workload: Workload, rounds: Sequence[int], count: int, seconds: float = 0.0) -> list[float]:
    """The undisturbed times of steps with so many rounds each, in nanoseconds, taken in turns: of `count`
    steps, or for `seconds`."""
    clock_ns = time.perf_counter_ns
    times_ns: list[list[float]] = [[] for _ in rounds]
    end_ns = clock_ns() + int(seconds * 1e9)
    while clock_ns() < end_ns or len(times_ns[-1]) < max(count, 50):
        for number, times in zip(rounds, times_ns, strict=True):
            began_ns = clock_ns()
            for _ in range(workload.micro_batches):
                inputs, targets = workload.to_device(workload.next_batch())
                if number:
                    compute(number)
                workload.backward(workload.forward(inputs, targets))
            workload.update()
            times.append(clock_ns() - began_ns)
    return [_undisturbed(times) for times in times_ns]


def _time_round() -> float:
    """Return about the nanoseconds of one round, from the fastest of several calls."""
    times_ns = []
    for _ in range(_TIMED_CALLS):
        began_ns = time.perf_counter_ns()
        compute(_TIMED_ROUNDS)
        times_ns.append(time.perf_counter_ns() - began_ns)
    return min(times_ns) / _TIMED_ROUNDS


def _undisturbed(values_ns: Sequence[float]) -> float:
    return quantiles(values_ns, n=20)[1]


@contextmanager
def hogs(number: int, seed: int) -> Iterator[None]:
    """So many processes that work half of the time, in bursts of random length."""
    processes = [
        subprocess.Popen([sys.executable, "-c", _HOG, str(1000 * seed + i), *map(str, BURST_S)])
        for i in range(number)
    ]
    try:
        yield
    finally:
        for hog in processes:
            hog.kill()
            hog.wait()


def main() -> None:
    """Train the plan given as JSON, in the folder given."""
    train(Plan(*json.loads(sys.argv[1])), Path(sys.argv[2]))


if __name__ == "__main__":
    main()
