"""The exposed metrics: standard names, base units. A figure that was not measured has no sample."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.metrics_core import SummaryMetricFamily

from harness.metrics.figures import RunFigures, Total
from harness.records.floats import decode_float
from harness.records.run import DeviceSampleRow, RunState, StepRow
from harness.words import clip

PREFIX = "stepscope"
_LABELS = ("run", "model", "device")
# Of a name or a script; Prometheus stores every label of every series.
_LONGEST_LABEL = 80

_Gauge = tuple[str, str, Callable[[RunFigures], float | None]]
_Labels = tuple[str, ...]


def _newest(value: Callable[[StepRow], float | None]) -> Callable[[RunFigures], float | None]:
    return lambda run: None if run.newest is None else value(run.newest)


def _sampled(value: Callable[[DeviceSampleRow], float | None]) -> Callable[[RunFigures], float | None]:
    return lambda run: None if run.sample is None else value(run.sample)


def _seconds(unix_ns: int | None) -> float | None:
    return None if unix_ns is None else unix_ns / 1e9


def _ratio(value_pct: float | None) -> float | None:
    return None if value_pct is None else value_pct / 100


_COUNTERS: Sequence[_Gauge] = (
    # The totals of a log are exact; a counter restarts with a run, which is a new series.
    ("steps", "Optimizer steps.", lambda run: run.summary.steps),
    ("samples", "Training samples.", lambda run: run.samples),
    ("tokens", "Training tokens.", lambda run: run.tokens),
    ("non_finite_losses", "Steps whose loss was NaN or infinite.", lambda run: run.non_finite_losses),
    ("device_energy_joules", "Energy of the device since its driver was loaded.", lambda run: run.energy_j),
)
_GAUGES: Sequence[_Gauge] = (
    (
        "run_start_time_seconds",
        "Start of the run, in Unix time.",
        lambda run: _seconds(run.summary.started_unix_ns),
    ),
    (
        "run_end_time_seconds",
        "End of the run, in Unix time; absent while it is live.",
        lambda run: _seconds(run.summary.ended_unix_ns),
    ),
    ("loss", "Loss of the newest step.", _newest(lambda step: decode_float(step.loss, step.loss_state))),
    (
        "memory_allocated_bytes",
        "Memory in live tensors.",
        lambda run: run.summary.allocated_bytes,
    ),
    (
        "memory_reserved_bytes",
        "Memory that the allocator has from the system.",
        _newest(lambda step: step.reserved_bytes),
    ),
    (
        "memory_peak_allocated_bytes",
        "Highest allocated memory of the run.",
        lambda run: run.summary.peak_allocated_bytes,
    ),
    (
        "memory_peak_reserved_bytes",
        "Highest reserved memory of the run.",
        lambda run: run.summary.peak_reserved_bytes,
    ),
    ("process_resident_memory_bytes", "RSS of the training process.", _newest(lambda step: step.rss_bytes)),
    (
        "device_utilization_ratio",
        "Share of time in which the device was busy.",
        _sampled(lambda sample: _ratio(sample.util_pct)),
    ),
    (
        "device_memory_used_bytes",
        "Device memory in use, by all processes.",
        _sampled(lambda sample: sample.memory_used_bytes),
    ),
    ("device_memory_size_bytes", "Device memory.", _sampled(lambda sample: sample.memory_total_bytes)),
    ("device_power_watts", "Power of the device.", _sampled(lambda sample: sample.power_w)),
    ("device_power_limit_watts", "Power limit of the device.", _sampled(lambda sample: sample.power_limit_w)),
    (
        "device_temperature_celsius",
        "Temperature of the device.",
        _sampled(lambda sample: sample.temperature_c),
    ),
)


def families(runs: Sequence[RunFigures]) -> Iterator[Metric]:
    """Yield the metrics of `runs`, each with the labels `run`, `model` and `device`."""
    labels = _labels(runs)
    yield _info(runs, labels)
    yield _states(runs, labels)
    for name, help_text, value in _COUNTERS:
        counter = CounterMetricFamily(f"{PREFIX}_{name}", help_text, labels=_LABELS)
        _add(counter, runs, labels, value)
        yield counter
    for name, help_text, value in _GAUGES:
        gauge = GaugeMetricFamily(f"{PREFIX}_{name}", help_text, labels=_LABELS)
        _add(gauge, runs, labels, value)
        yield gauge
    yield from _durations(runs, labels)
    yield _events(runs, labels)


def _labels(runs: Sequence[RunFigures]) -> list[_Labels]:
    """Return the labels of each run. Names are unique in a home, unless a folder was copied into it: then the
    ids are added."""
    names = Counter(run.summary.name for run in runs)
    labels: list[_Labels] = []
    for run in runs:
        summary = run.summary
        name = clip(summary.name, _LONGEST_LABEL)
        if names[summary.name] > 1 or name != summary.name:
            name = f"{name} ({clip(summary.run_id, _LONGEST_LABEL)})"
        device = "" if summary.device is None else summary.device.torch_name
        labels.append((name, clip(summary.subject or "", _LONGEST_LABEL), clip(device, _LONGEST_LABEL)))
    return labels


def _add(
    family: CounterMetricFamily | GaugeMetricFamily,
    runs: Sequence[RunFigures],
    labels: Sequence[_Labels],
    value: Callable[[RunFigures], float | None],
) -> None:
    for run, of_run in zip(runs, labels, strict=True):
        figure = value(run)
        if figure is not None:
            family.add_metric(of_run, figure)


def _info(runs: Sequence[RunFigures], labels: Sequence[_Labels]) -> Metric:
    family = InfoMetricFamily(f"{PREFIX}_run", "Facts about a run.", labels=_LABELS)
    for run, of_run in zip(runs, labels, strict=True):
        device, torch = run.summary.device, run.summary.versions.get("torch")
        facts = {
            "run_id": clip(run.summary.run_id, _LONGEST_LABEL),
            "device_name": "" if device is None else clip(device.name, _LONGEST_LABEL),
            "torch": "" if torch is None else clip(str(torch), _LONGEST_LABEL),
        }
        family.add_metric(of_run, facts)
    return family


def _states(runs: Sequence[RunFigures], labels: Sequence[_Labels]) -> Metric:
    family = GaugeMetricFamily(
        f"{PREFIX}_run_state", "1 for the state of the run.", labels=(*_LABELS, "state")
    )
    for run, of_run in zip(runs, labels, strict=True):
        for state in RunState:
            family.add_metric((*of_run, state.value), float(run.summary.status.state is state))
    return family


def _durations(runs: Sequence[RunFigures], labels: Sequence[_Labels]) -> Iterator[Metric]:
    """Yield the summaries of step and phase durations; quantiles are those of the newest steps."""
    name = f"{PREFIX}_step_duration_seconds"
    steps = SummaryMetricFamily(name, "Duration of steps.", labels=_LABELS)
    phase_labels = (*_LABELS, "phase", "clock")
    phases = SummaryMetricFamily(
        f"{PREFIX}_phase_duration_seconds",
        "Duration of the phases of steps, on the CPU's clock (issue time) and the device's.",
        labels=phase_labels,
    )
    for run, of_run in zip(runs, labels, strict=True):
        for quantile, value_s in run.step_quantiles_s.items():
            steps.add_sample(
                name, dict(zip((*_LABELS, "quantile"), (*of_run, f"{quantile:g}"), strict=True)), value_s
            )
        _add_total(steps, of_run, run.steps)
        for (phase, clock), total in run.phases.items():
            _add_total(phases, (*of_run, phase.value, clock), total)
    yield steps
    yield phases


def _add_total(family: SummaryMetricFamily, labels: _Labels, total: Total | None) -> None:
    if total is not None:
        family.add_metric(labels, total.values, total.sum_s)


def _events(runs: Sequence[RunFigures], labels: Sequence[_Labels]) -> Metric:
    family = CounterMetricFamily(f"{PREFIX}_events", "Events in the log, by kind.", labels=(*_LABELS, "kind"))
    for run, of_run in zip(runs, labels, strict=True):
        for kind, count in sorted(run.events.items()):
            family.add_metric((*of_run, kind), count)
    return family
