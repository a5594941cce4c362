"""Reads the evidence for advice (`harness.analysis.advice`) from a run's log."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.analysis.advice import PastChange, PredictedPeak, RunEvidence
from harness.analysis.advice.evidence import SmClock
from harness.analysis.advice.inspection import latest_inspection
from harness.analysis.effect import ObservedChange
from harness.analysis.timing.phases import analyze
from harness.device.peaks import math_type, peak
from harness.files.plain_json import json_object
from harness.records.measurement import MeasurementEnd
from harness.records.run import (
    AckRow,
    CommandKind,
    CommandRow,
    CommandState,
    DeviceFacts,
    HostSampleRow,
    SettingsRow,
)
from harness.settings import Settings
from harness.settings.recorded import read_recorded
from harness.settings.spec import change
from harness.store.reader import LogReader
from harness.supervisor.changes import observe_version
from harness.supervisor.measuring import Measurement
from harness.supervisor.refit import refit_peak

# The newest steps under the current settings that are analyzed.
STEPS = 1_000
_CANDIDATES = (("amp", "bf16"), ("amp", "fp16"), ("matmul_precision", "high"))
# The newest samples of the host that are analyzed, one per second.
_HOST_SAMPLES = 120
# Those of this time are analyzed also where the steps above take less, as 1,000 steps of 5 ms do: twice the
# samples that the rule on the load of a CPU requires.
_HOST_SPAN_NS = 20 * 10**9
# The newest changes of settings whose effect is analyzed.
_MOST_CHANGES = 12

# Returns the effect of the change of settings at an index of the history.
Observe = Callable[[int], ObservedChange | None]


def read_evidence(
    reader: LogReader,
    device: DeviceFacts | None,
    commands: Sequence[CommandRow] = (),
    observed: Observe | None = None,
    predicted_peak: PredictedPeak | None = None,
    measured: Sequence[Measurement] = (),
) -> RunEvidence | None:
    """Return the evidence in the log; None without a step, or when this version cannot read the settings.

    `commands` are those sent to the run: a rejected change is not proposed again. `observed` replaces reading
    the effect of each change. `measured` are the run's measurements, the newest first or last. Raises
    LogError.
    """
    extent, history = reader.extent(), reader.settings_history()
    if device is None or extent.first is None or extent.last is None or not history:
        return None
    recorded = read_recorded(history[-1].settings)
    if recorded is None:
        return None
    settings = recorded.values
    first = max(extent.first, extent.last - STEPS + 1, history[-1].step)
    steps = reader.steps(first, extent.last, STEPS)
    name = device.uuid or device.kind.value
    hosts = _host_samples(reader, first, history[-1].step)
    return RunEvidence(
        device,
        settings,
        steps,
        analyze(steps),
        [
            *_tried(history, observed or (lambda at: observe_version(reader, history, at))),
            *(_measured(one) for one in measured if one.is_over),
        ],
        _rejected(commands, reader.acks() if commands else ()),
        reader.telemetry.details(name, first, extent.last),
        reader.telemetry.processes(name),
        _clocks(reader, name, (extent.first, first, extent.last)),
        reader.memory.latest_sample(),
        speedups(settings, device),
        predicted_peak or (_refitted_peak(reader, settings) if recorded.complete is None else None),
        latest_inspection([event for _, event in reader.events()], history[-1].step),
        _sampled_steps(reader, first, extent.last),
        hosts,
        {row.seq: row.workers_cpu_pct for row in reader.telemetry.last_hosts(len(hosts))} if hosts else {},
        _recorded(reader, "torch_threads"),
        _recorded(reader, "process_limit_bytes"),
        frozenset(recorded.names),
        reader.memory.current_leaks(),
        _recorded(reader, "cpu_cores"),
        _recorded(reader, "usable_cores"),
    )


def _refitted_peak(reader: LogReader, settings: Settings) -> PredictedPeak | None:
    """Return the peak with twice the batch of a script, which no prediction can trace, from its own steps."""
    refit = refit_peak(reader)
    if refit is None or refit.larger != 2 * refit.samples:
        return None
    return PredictedPeak(2 * settings.batch_size, refit.peak_bytes, refit.basis)


def _host_samples(reader: LogReader, first: int, changed: int) -> list[HostSampleRow]:
    """Return the newest samples of the host: since the step `first`, and of the last 20 s of the run, but of
    no step before `changed`, that of the newest change of settings."""
    samples = reader.last_host_samples(_HOST_SAMPLES, changed)
    return [row for row in samples if row.step >= first or row.t_ns > samples[-1].t_ns - _HOST_SPAN_NS]


def _recorded(reader: LogReader, name: str) -> int | None:
    """Return a number that was recorded at the start of the run; None for logs of versions that did not."""
    number = json_object(reader.run().versions).get(name)
    return number if type(number) is int else None


def _sampled_steps(reader: LogReader, first: int, last: int) -> frozenset[int]:
    """Return the steps in which memory was sampled: a sample has the number of the newest finished step, and
    may extend into the next one."""
    samples = reader.memory.samples(first - 1, last, STEPS)
    return frozenset(step for sample in samples for step in (sample.step, sample.step + 1))


def speedups(settings: Settings, device: DeviceFacts) -> dict[tuple[str, Any], float]:
    """Return the factor by which each setting of the data type raises the device's peak FLOP/s."""
    now = peak(device, math_type(settings, device))
    factors: dict[tuple[str, Any], float] = {}
    for name, value in _CANDIDATES:
        then = peak(device, math_type(change(settings, {name: value}), device))
        if now is not None and then is not None:
            factors[name, value] = then.flops_per_s / now.flops_per_s
    return factors


def _tried(history: Sequence[SettingsRow], observed: Observe) -> list[PastChange]:
    tried = []
    for at in range(max(1, len(history) - _MOST_CHANGES), len(history)):
        changed = history[at].changes
        earlier = history[at - 1].values
        before = {name: earlier[name] for name in changed if name in earlier}
        is_undone = _is_undone(history, at, changed)
        tried.append(PastChange(changed, history[at].step, observed(at), is_undone, before))
    return tried


def _measured(measurement: Measurement) -> PastChange:
    """Return a measured change as a past one."""
    end, low = measurement.end, measurement.effect.main.low
    return PastChange(
        measurement.after,
        measurement.plan.step,
        None,
        end is not None and end.state == MeasurementEnd.OUT_OF_MEMORY,
        measurement.before,
        None if low is None or low <= -1 else 1 / (1 + low),
    )


def _is_undone(history: Sequence[SettingsRow], at: int, changed: Mapping[str, Any]) -> bool:
    """Return whether the run itself changed one of these settings again right after."""
    if at + 1 >= len(history) or history[at + 1].command_id is not None:
        return False
    return bool(set(changed) & set(history[at + 1].changes))


def _rejected(commands: Sequence[CommandRow], acks: Sequence[AckRow]) -> list[Mapping[str, Any]]:
    rejected = {ack.command_id for ack in acks if ack.state == CommandState.REJECTED}
    return [
        command.values
        for command in commands
        if command.kind == CommandKind.SET and command.command_id in rejected
    ]


def _clocks(reader: LogReader, device: str, steps: tuple[int, int, int]) -> SmClock | None:
    """Return the mean clock since the second of `steps`, and the highest since the first."""
    start, first, last = steps
    recent = [value for value in reader.device_series(device, first, last).mean("sm_clock_mhz") if value]
    all_highest = reader.device_series(device, start, last, 50).column("sm_clock_mhz_max")
    highest = max((value for value in all_highest if value), default=None)
    if not recent or highest is None:
        return None
    return SmClock(sum(recent) / len(recent), highest)
