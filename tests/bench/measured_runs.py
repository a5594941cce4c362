"""Real runs that measure one change after the other, with a known effect: mostly none."""

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import exp, log
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

import torch
from torch import Tensor

from harness.analysis.effect.measured import THROUGHPUT
from harness.data.source import open_source
from harness.device.cpu.device import CpuDevice
from harness.models.building import build_model
from harness.records.measurement import DEFAULT_PAIRS, MeasurementEnd, MeasureRequest, judgment_pairs
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
# Between two measurements, and before the first one, where the rounds are corrected.
_REST_S, _FIRST_REST_S = 6.0, 15.0
# Steps of a stretch with either call, and the first of them, which do not count.
_STRETCH, _UNSETTLED = 40, 5
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
    # The share by which the added work really makes a step longer, by a clock of its own.
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
    """A model with a forward pass that also computes rounds of SHA-256, see `tests.bench.effect_runs`: more
    in arm B, and more and more during a measurement. Both arms make the same calls.

    What the longer calls add to a step is more than they take themselves, because what follows is slower too.
    So it is measured on whole steps, by a clock of its own, in the rests after the measurements, where
    stretches of steps with either call take turns (`truth`).
    """

    def prepare(self, work: Work, kind: Kind) -> None:
        """Begin to add work."""
        self._work, self._kind = work, kind
        self._expected_s = 2 * judgment_pairs(DEFAULT_PAIRS)[0] * (BLOCK_NS + DISCARDED_NS) / 1e9
        self._least = self._more = self._most = 0
        self._log_ratios: list[float] = []
        self._is_corrected = False
        if kind.effect or kind.drift:
            self._least = round(_LEAST * work.step_ns / work.round_ns)
            self._more = round(kind.effect * work.step_ns / work.round_ns)
            self._most = round(kind.drift * work.step_ns / work.round_ns)
        self.rest()
        self._load()

    def rest(self) -> None:
        """Until the next measurement, use the rounds of both arms in turns."""
        self._is_resting = True
        self._began_ns: list[int] = []

    def end_rest(self) -> None:
        """Begin the drift anew. After the first rest, correct the rounds of arm B by what they added in it:
        in this very process and beside all its threads."""
        self._is_resting = False
        self._began_s = time.monotonic()
        if not self._kind.effect:
            return
        compared = log_ratios(self._began_ns)
        if self._is_corrected:
            self._log_ratios += compared
        else:
            self._is_corrected = True
            added = max(exp(median(compared)) - 1, 0.1 * self._kind.effect)
            self._more = max(1, round(self._more * self._kind.effect / added))

    @property
    def truth(self) -> float:
        """The share by which a step of arm B takes longer, from all rests but the first; 0 without work."""
        return exp(median(self._log_ratios)) - 1 if self._log_ratios else 0.0

    def reconfigure(self, settings: Settings) -> None:
        """Like any workload, which has a new forward pass then."""
        super().reconfigure(settings)
        self._load()

    def _load(self) -> None:
        plain = self.forward
        clock_ns = time.perf_counter_ns

        def forward(inputs: Tensor, targets: Tensor) -> Tensor:
            is_more = self.settings.learning_rate == _RATES[1]
            if self._is_resting:
                is_more = len(self._began_ns) // _STRETCH % 2 == 0
                self._began_ns.append(clock_ns())
            rounds = self._least + is_more * self._more
            if self._most and not self._is_resting:
                rounds += round(min(1.0, (time.monotonic() - self._began_s) / self._expected_s) * self._most)
            if rounds:
                compute(rounds)
            return plain(inputs, targets)

        self.forward = forward


def log_ratios(began_ns: Sequence[int]) -> list[float]:
    """Compare neighboring stretches of steps with the more and the fewer rounds, by the times at which the
    steps began: the logarithms of the ratios of their undisturbed steps. A stretch with more comes first."""
    lows: list[float] = []
    for begin in range(0, len(began_ns) - _STRETCH, _STRETCH):
        stretch = began_ns[begin + _UNSETTLED : begin + _STRETCH + 1]
        lows.append(quantiles((end - start for start, end in pairwise(stretch)), n=10)[0])
    return [log(more / less) for more, less in zip(lows[::2], lows[1::2], strict=False)]


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
    try:
        with hogs(kind.hogs, plan.seed), Recording(workload, device, folder) as recording:
            requests = _requests(plan, folder, workload, recording)

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
            _result(plan, read_measurement(reader, number + 1), workload.truth)
            for number in range(plan.measurements)
        ]


def _requests(plan: Plan, folder: Path, workload: MeasuredWorkload, recording: Recording) -> Iterator[None]:
    """Queried before each step: sends one request after the other, and then the end."""
    with ControlLog(RunFolder(folder)) as control:

        def send(kind: CommandKind, name: str, values: dict[str, Any]) -> None:
            control.send(CommandRow(name, time.time_ns(), kind, json.dumps(values), "bench"))

        for number in range(plan.measurements):
            workload.rest()
            yield from _until(time.monotonic() + (_REST_S if number else _FIRST_REST_S))
            request = MeasureRequest({"learning_rate": _RATES[1]})
            send(CommandKind.MEASURE, f"m{plan.seed}-{number}", request._asdict())
            deadline_s = time.monotonic() + _MOST_S
            while not recording.measuring.is_capturing and time.monotonic() < deadline_s:
                yield
            workload.end_rest()
            while recording.measuring.is_capturing and time.monotonic() < deadline_s:
                yield
        workload.rest()
        yield from _until(time.monotonic() + _REST_S)
        workload.end_rest()
        send(CommandKind.STOP, "stop", {})
        while True:
            yield


def _until(moment_s: float) -> Iterator[None]:
    while time.monotonic() < moment_s:
        yield


def _result(plan: Plan, measurement: Measurement | None, truth: float) -> Result:
    assert measurement is not None
    assert measurement.end is not None
    assert measurement.end.state == MeasurementEnd.COMPLETED, measurement.end.message
    main = measurement.effect.main
    throughput = next(figure for figure in measurement.effect.figures if figure.kind is THROUGHPUT)
    seconds = (measurement.end.t_ns - measurement.plan.t_ns) / 1e9
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
