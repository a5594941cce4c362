"""Real runs that measure one change after the other, with a known effect: mostly none."""

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

import torch
from torch import Tensor

from harness.analysis.effect.measured import THROUGHPUT
from harness.data.source import open_source
from harness.device.cpu.device import CpuDevice
from harness.models.building import build_model
from harness.records.measurement import DEFAULT_PAIRS, MeasurementEnd, MeasureRequest, looks
from harness.records.run import CommandKind, CommandRow
from harness.settings import Settings
from harness.settings.resolve import resolve
from harness.store.control import ControlLog
from harness.store.folder import RunFolder
from harness.store.reader import LogReader
from harness.supervisor.measuring import Measurement, read_measurement
from harness.train.workload import Workload
from harness.watch.measured_blocks import BLOCK_NS, DISCARDED_NS
from harness.watch.steps import Steps
from tests.bench.effect_runs import Work, calibrate, compute, hogs
from tests.bench.rig import Recording

# The learning rate is measured, which no step's time depends on.
_RATES = (0.0010, 0.0011)
_MANY_STEPS = 10_000_000
# Between two measurements.
_REST_S = 2.0
# Rounds that both arms compute, as a share of the step.
_LEAST = 0.02
# After this the measurement counts as failed.
_MOST_S = 300.0


class Kind(NamedTuple):
    """A kind of measurement: `effect` is the share by which a step is longer in arm B, `drift` by which all
    steps become longer from its begin to its end, and `hogs` processes work half of the time on the same
    core."""

    name: str
    effect: float = 0.0
    drift: float = 0.0
    hogs: int = 0


KINDS = {
    kind.name: kind
    for kind in (
        Kind("alone"),
        Kind("drift", drift=0.03),
        Kind("beside", hogs=1),
        Kind("effect", effect=0.02),
    )
}


class Plan(NamedTuple):
    """So many measurements of one kind in one run, on one core."""

    kind: str
    model: str
    measurements: int
    core: int
    seed: int


class Result(NamedTuple):
    """One measurement: the true effect, the verdict and the interval; None: too few pairs."""

    kind: str
    model: str
    # The share that the added work really is of the step, by the clock.
    truth: float
    word: str
    effect: float | None
    low: float | None
    high: float | None
    throughput_word: str
    seconds: float
    load: float

    @property
    def is_called(self) -> bool:
        """Return whether the verdict names a difference."""
        return self.word in ("faster", "slower")

    @property
    def is_found(self) -> bool:
        """Return whether the verdict names the difference that there is."""
        return self.word == ("slower" if self.truth > 0 else "faster")

    @property
    def is_covered(self) -> bool:
        """Return whether the interval contains the truth."""
        return self.low is not None and self.high is not None and self.low <= self.truth <= self.high

    @property
    def has_wrong_sign(self) -> bool:
        """Return whether the verdict names the opposite of the difference that there is."""
        return self.truth != 0 and self.is_called and not self.is_found

    @property
    def half_width_pct(self) -> float:
        """Half of the interval's width."""
        return 50 * ((self.high or 0.0) - (self.low or 0.0))


class MeasuredWorkload(Workload):
    """A model whose forward pass also computes rounds of SHA-256, see `tests.bench.effect_runs`: more in
    arm B, and more and more during a measurement. Both arms make the same calls, and each call is timed, so
    that what it really adds to a step of arm B is known (`added_ns`)."""

    def prepare(self, work: Work, kind: Kind) -> None:
        """Begin to add work."""
        self._work, self._kind = work, kind
        self._expected_s = 2 * looks(DEFAULT_PAIRS)[0] * (BLOCK_NS + DISCARDED_NS) / 1e9
        self._least = self._more = self._most = 0
        if kind.effect or kind.drift:
            self._least = round(_LEAST * work.step_ns / work.round_ns)
            self._more = round(kind.effect * work.step_ns / work.round_ns)
            self._most = round(kind.drift * work.step_ns / work.round_ns)
        self.rest()
        self._load()

    def rest(self) -> None:
        """Until the next measurement, use the rounds of both arms in turns."""
        self._is_resting = True
        self._began_ns = 0
        self._steps_ns: list[int] = []
        self._calls_ns: tuple[list[int], list[int]] = ([], [])

    def measurement_begins(self) -> None:
        """Begin the drift anew, and correct the rounds of arm B by what they took during the rest, in this
        very process and beside all its threads."""
        if self._kind.effect and self._calls_ns[True]:
            step_ns = quantiles(self._steps_ns, n=20)[0] - median(self._calls_ns[True])
            self._more = max(1, round(self._kind.effect * step_ns * self._more / self.added_ns))
        self._is_resting = False
        self._calls_ns = ([], [])
        self._began_s = time.monotonic()

    @property
    def added_ns(self) -> float:
        """What a step of arm B takes longer because of the added rounds."""
        without, with_effect = self._calls_ns
        return median(with_effect) - median(without)

    def reconfigure(self, settings: Settings) -> None:
        """As any workload, which has a new forward pass then."""
        super().reconfigure(settings)
        self._load()

    def _load(self) -> None:
        plain = self.forward
        clock_ns = time.perf_counter_ns

        def forward(inputs: Tensor, targets: Tensor) -> Tensor:
            is_more = self.settings.learning_rate == _RATES[1]
            if self._is_resting:
                now_ns = clock_ns()
                is_more = len(self._steps_ns) % 2 == 0
                self._steps_ns.append(now_ns - self._began_ns)
                self._began_ns = now_ns
            rounds = self._least + is_more * self._more
            if self._most and not self._is_resting:
                rounds += round(min(1.0, (time.monotonic() - self._began_s) / self._expected_s) * self._most)
            if rounds:
                began_ns = clock_ns()
                compute(rounds)
                self._calls_ns[is_more].append(clock_ns() - began_ns)
            return plain(inputs, targets)

        self.forward = forward


def measure(plan: Plan, folder: Path) -> list[Result]:
    """Train and measure in this process, with the log in `folder`."""
    os.sched_setaffinity(0, [plan.core])
    torch.set_num_threads(1)
    kind = KINDS[plan.kind]
    settings = resolve({"model": plan.model, "learning_rate": _RATES[0], "seed": plan.seed})
    torch.set_flush_denormal(settings.flush_denormal)
    device = CpuDevice.open()
    source = open_source(settings)
    torch.manual_seed(settings.seed)
    device.begin_memory()
    workload = MeasuredWorkload(settings, device, build_model(settings, source.shape), source)
    work = calibrate(workload)
    workload.prepare(work, kind)
    added: list[float] = []
    try:
        with hogs(kind.hogs, plan.seed), Recording(workload, device, folder) as recording:
            requests = _requests(plan, folder, workload, recording, added)

            def around(steps: Steps) -> None:
                proceed = steps.proceed

                def with_requests(step: int) -> bool:
                    next(requests)
                    return proceed(step)

                steps.proceed = with_requests

            recording.train(_MANY_STEPS, around)
        assert not recording.errors, recording.errors
    finally:
        workload.close()
    with LogReader(folder / "log.sqlite3") as reader:
        return [
            _result(plan, read_measurement(reader, number + 1), added_ns)
            for number, added_ns in enumerate(added)
        ]


def _requests(
    plan: Plan, folder: Path, workload: MeasuredWorkload, recording: Recording, added: list[float]
) -> Iterator[None]:
    """Queried before each step: sends one request after the other, and then the end. What the steps of arm B
    took longer is appended to `added`, in nanoseconds."""
    with ControlLog(RunFolder(folder)) as control:

        def send(kind: CommandKind, name: str, values: dict[str, Any]) -> None:
            control.send(CommandRow(name, time.time_ns(), kind, json.dumps(values), "bench"))

        for number in range(plan.measurements):
            workload.rest()
            yield from _until(time.monotonic() + _REST_S)
            request = MeasureRequest({"learning_rate": _RATES[1]})
            send(CommandKind.MEASURE, f"m{plan.seed}-{number}", request._asdict())
            deadline_s = time.monotonic() + _MOST_S
            while not recording.measuring.is_capturing and time.monotonic() < deadline_s:
                yield
            workload.measurement_begins()
            while recording.measuring.is_capturing and time.monotonic() < deadline_s:
                yield
            added.append(workload.added_ns if KINDS[plan.kind].effect else 0.0)
        send(CommandKind.STOP, "stop", {})
        while True:
            yield


def _until(moment_s: float) -> Iterator[None]:
    while time.monotonic() < moment_s:
        yield


def _result(plan: Plan, measurement: Measurement | None, added_ns: float) -> Result:
    assert measurement is not None
    assert measurement.end is not None
    assert measurement.end.state == MeasurementEnd.COMPLETED, measurement.end.message
    main = measurement.effect.main
    throughput = next(figure for figure in measurement.effect.figures if figure.kind is THROUGHPUT)
    seconds = (measurement.end.t_ns - measurement.plan.t_ns) / 1e9
    truth = added_ns / main.before if added_ns and main.before else 0.0
    return Result(
        plan.kind,
        plan.model,
        truth,
        main.word.value,
        main.effect,
        main.low,
        main.high,
        throughput.word.value,
        round(seconds, 1),
        os.getloadavg()[0],
    )


def main(arguments: Sequence[str]) -> None:
    """Carry out the plan given as JSON in the folder given, and print each result as a line of JSON."""
    for result in measure(Plan(*json.loads(arguments[0])), Path(arguments[1])):
        print(json.dumps(result._asdict()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
