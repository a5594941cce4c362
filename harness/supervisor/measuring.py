"""Reads measurements of a change of settings from a run's log, and judges them."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

from harness import words
from harness.analysis.effect.doubts import ArmConditions, Conditions, doubts
from harness.analysis.effect.measured import (
    BlockFigures,
    MeasuredEffect,
    measure_effect,
    undisturbed_ns,
)
from harness.files.plain_json import json_object
from harness.records.measurement import (
    BLOCK,
    SWITCH,
    Arm,
    BlockSums,
    MeasurementBlockRow,
    MeasurementEnd,
    MeasurementEndRow,
    MeasurementRow,
    expected_s,
    judgment_pairs,
)
from harness.records.run import DeviceKind, RunState
from harness.settings.spec import difference_title
from harness.store.reader import LogReader
from harness.supervisor.stored_json import read_device

# Longer measurements are announced before they begin.
_LONG_S = 1800.0
# The expected time is from the median of so many steps before the measurement.
_STEPS_BEFORE = 50


def long_measurement(step_ns: float | None, pairs: int) -> str | None:
    """Return a sentence about a measurement that takes long; None for others, and without a step time."""
    pairs = judgment_pairs(pairs)[0]
    if step_ns is None or expected_s(step_ns / 1e9, pairs) <= _LONG_S:
        return None
    return (
        f"This takes at least {words.span(expected_s(step_ns / 1e9, pairs))}: a step takes "
        f"{words.fine_duration(step_ns)}, and {words.plural(pairs, 'pair')} of blocks are "
        f"{words.count((2 * pairs + 1) * (BLOCK[0] + SWITCH[0]))} steps. It can be ended at any time."
    )


class Measurement(NamedTuple):
    """One measurement: its plan, its finished blocks, its end, None while it goes on, and the effect: that of
    all pairs, but of one that may be conclusive, that of the pairs at the last judgment.

    `reasons` are sentences on why not to trust the effect. `is_over` is True once the run has ended too.
    `expected_s` is the time until it is judged first, as expected from the steps before it; None without any.
    """

    plan: MeasurementRow
    blocks: Sequence[MeasurementBlockRow]
    end: MeasurementEndRow | None
    effect: MeasuredEffect
    reasons: Sequence[str]
    is_kept: bool
    is_over: bool
    expected_s: float | None

    @property
    def title(self) -> str:
        """The measured change: "AMP off → bf16"."""
        return difference_title(self.before, self.after)

    @property
    def before(self) -> dict[str, Any]:
        """The settings of arm A that differ."""
        return json_object(self.plan.before)

    @property
    def after(self) -> dict[str, Any]:
        """The settings of arm B that differ."""
        return json_object(self.plan.after)

    @property
    def pairs(self) -> int:
        """The number of finished pairs."""
        return self.blocks[-1].pair if self.blocks else 0

    @property
    def next_judgment(self) -> int:
        """The pairs after which it is judged next, and ends if it is conclusive."""
        planned = self.plan.pairs
        return next((judged for judged in judgment_pairs(planned) if judged > self.pairs), planned)

    @property
    def progress(self) -> str:
        """The progress in words: "pair 20 of 32, inconclusive after 16"."""
        last = last_judgment(self.plan.pairs, self.pairs)
        word = "conclusive" if self.effect.is_conclusive else "inconclusive"
        return f"pair {self.pairs} of {self.next_judgment}{'' if last is None else f', {word} after {last}'}"

    @property
    def remaining_s(self) -> float | None:
        """The expected time until it is judged next, from the finished pairs; None without any, or after the
        end."""
        if self.is_over or not self.pairs:
            return None
        passed_ns = self.blocks[-1].t_ns - self.plan.t_ns
        return passed_ns / 1e9 / self.pairs * (self.next_judgment - self.pairs)

    def remaining_text(self, state: RunState) -> str | None:
        """Return the remaining time of a measurement of a run in `state` in words, before the first pair the
        least duration; None after the end."""
        if state is RunState.PAUSED and not self.is_over:
            return "waiting: the run is paused"
        if self.remaining_s is not None:
            return f"about {words.span(self.remaining_s)} left"
        if self.is_over or self.expected_s is None:
            return None
        return f"at least {words.span(self.expected_s)}"

    @property
    def outcome(self) -> str:
        """The end in one sentence; empty while it goes on."""
        if self.end is not None:
            return self.end.message
        return "The run ended in the middle." if self.is_over else ""

    @property
    def sentence(self) -> str:
        """The verdict, what became of the change, and the reasons not to trust it."""
        note = ""
        if self.plan.keeps_if_better and self.is_over:
            note = " The change was kept." if self.is_kept else " The change was not kept."
        untrusted = f" Not to be trusted: {' '.join(self.reasons)}" if self.reasons else ""
        partial = ""
        if self.is_over and (self.end is None or self.end.state != MeasurementEnd.COMPLETED):
            partial = f" {self.outcome}"
        return f"{self.effect.sentence}{note}{partial}{untrusted}"


def read_measurement(reader: LogReader, number: int, is_run_over: bool = False) -> Measurement | None:
    """Return one measurement, with the effect so far; None where there is none of that number, or one that no
    run writes. Raises LogError."""
    plan = reader.measurements.plan(number)
    if plan is None or not _is_valid(plan):
        return None
    end = reader.measurements.end(number)
    # A live run may record a pair between two queries: each may have more blocks than the one before.
    blocks = reader.measurements.blocks(number)
    sums = reader.measurements.sums(number)[: len(blocks)]
    on_device = bool(sums) and all(one.device_ns is not None for one in sums)
    times_ns = reader.measurements.step_times_ns(number, on_device=on_device)
    figures = _figures(blocks, sums, times_ns, on_device)
    effect = measure_effect(_up_to_last_judgment(plan, end, figures), len(judgment_pairs(plan.pairs)))
    is_over = end is not None or is_run_over
    reasons = doubts(_conditions(reader, blocks, sums)) if blocks else []
    is_kept = any(row.command_id == plan.keep_command_id for row in reader.settings_history())
    # A measurement from the first step on has none before it.
    rows = reader.steps(plan.step - _STEPS_BEFORE, plan.step - 1) or reader.last_steps(_STEPS_BEFORE)
    least_pairs = judgment_pairs(plan.pairs)[0]
    expected = expected_s(median(row.step_ns for row in rows) / 1e9, least_pairs) if rows else None
    return Measurement(plan, blocks, end, effect, reasons, is_kept, is_over, expected)


def last_judgment(most: int, pairs: int) -> int | None:
    """Return after how many of `pairs` pairs a measurement of at most `most` was judged last; None: never."""
    return max((judged for judged in judgment_pairs(most) if judged <= pairs), default=None)


def _up_to_last_judgment(
    plan: MeasurementRow, end: MeasurementEndRow | None, figures: Sequence[BlockFigures]
) -> Sequence[BlockFigures]:
    """Leave out the pairs that were measured while the judge compared those before them: that is another
    sample than the one that was conclusive."""
    if end is not None and end.state != MeasurementEnd.COMPLETED:
        return figures
    last = last_judgment(plan.pairs, max((one.pair for one in figures), default=0))
    return figures if last is None else [one for one in figures if one.pair <= last]


def read_measurements(reader: LogReader, is_run_over: bool = False, most: int = 20) -> list[Measurement]:
    """Return the newest measurements, in order. Raises LogError."""
    plans = reader.measurements.plans()[-most:]
    rows = (read_measurement(reader, plan.number, is_run_over) for plan in plans)
    return [measurement for measurement in rows if measurement is not None]


def _is_valid(plan: MeasurementRow) -> bool:
    try:
        return bool(json_object(plan.before)) and bool(json_object(plan.after)) and plan.pairs > 0
    except ValueError:
        return False


def is_of(measurement: Measurement, change: Mapping[str, Any]) -> bool:
    """Return whether `change` was measured; values that were in effect are not part of a measurement."""
    after = measurement.after
    return bool(after) and after.items() <= change.items()


def measured_effect(measurements: Sequence[Measurement], change: Mapping[str, Any]) -> Measurement | None:
    """Return the newest of these measurements of `change`, None without one."""
    of_change = [one for one in measurements if is_of(one, change)]
    return max(of_change, key=lambda one: one.plan.number, default=None)


def measurement_json(measurement: Measurement) -> dict[str, Any]:
    """Return a measurement for JSON, in base units."""
    plan, end = measurement.plan, measurement.end
    return {
        "number": plan.number,
        "title": measurement.title,
        "before": measurement.before,
        "after": measurement.after,
        "step": plan.step,
        "pairs": measurement.pairs,
        "pairs_planned": plan.pairs,
        "state": "running" if not measurement.is_over else "run_ended" if end is None else end.state,
        "message": measurement.outcome,
        "keep_if_better": bool(plan.keeps_if_better),
        "is_kept": measurement.is_kept,
        "remaining_s": measurement.remaining_s,
        "expected_s": measurement.expected_s,
        "verdict": measurement.effect.main.word.value,
        "sentence": measurement.sentence,
        "reasons_not_to_trust": list(measurement.reasons),
        "figures": [
            {
                "name": figure.kind.name,
                "before": figure.before,
                "after": figure.after,
                "effect": figure.effect,
                "low": figure.low,
                "high": figure.high,
                "is_ratio": figure.kind.is_ratio,
                "verdict": figure.verdict,
                "more_pairs": figure.more_pairs,
            }
            for figure in measurement.effect.figures
        ],
    }


def _figures(
    blocks: Sequence[MeasurementBlockRow],
    sums: Sequence[BlockSums],
    times_ns: Mapping[tuple[int, Arm], Sequence[int]],
    on_device: bool,
) -> list[BlockFigures]:
    """Return the figures of each block, whose parts are rows of `blocks` with their sums."""
    parts: dict[tuple[int, Arm], list[tuple[MeasurementBlockRow, BlockSums]]] = {}
    for block, one in zip(blocks, sums, strict=True):
        parts.setdefault((block.pair, Arm(block.arm)), []).append((block, one))
    return [
        _block_figures(pair, arm, parts[pair, arm], times, on_device)
        for (pair, arm), times in times_ns.items()
        if (pair, arm) in parts
    ]


def _block_figures(
    pair: int,
    arm: Arm,
    parts: Sequence[tuple[MeasurementBlockRow, BlockSums]],
    times_ns: Sequence[int],
    on_device: bool,
) -> BlockFigures:
    sums = [one for _, one in parts]
    total = [one.device_ns if on_device else one.wall_ns for one in sums]
    losses = [one.loss for one in sums if one.loss is not None and one.losses == one.steps]
    energies = [_energy_j(block) for block, _ in parts]
    return BlockFigures(
        pair,
        arm,
        undisturbed_ns(times_ns),
        float(sum(one or 0 for one in total)),
        sum(one.steps for one in sums),
        sum(one.samples for one in sums),
        sum(losses) / sum(one.losses for one in sums) if len(losses) == len(sums) else None,
        max((one.peak_allocated_bytes for one in sums if one.peak_allocated_bytes is not None), default=None),
        max((one.peak_reserved_bytes for one in sums if one.peak_reserved_bytes is not None), default=None),
        sum(one for one in energies if one is not None) if None not in energies else None,
    )


def _energy_j(block: MeasurementBlockRow) -> float | None:
    if block.energy_j is None or block.began_energy_j is None:
        return None
    return max(0.0, block.energy_j - block.began_energy_j)


def _conditions(
    reader: LogReader, blocks: Sequence[MeasurementBlockRow], sums: Sequence[BlockSums]
) -> Conditions:
    run = reader.run()
    device = read_device(run.device)
    is_cpu = device is None or device.kind is DeviceKind.CPU
    name = DeviceKind.CPU.value if device is None else device.uuid or device.kind.value

    def of_arm(arm: Arm) -> ArmConditions:
        if is_cpu:  # It has neither.
            return ArmConditions(None, 0)
        means = reader.measurements.device_means(name, [block for block in blocks if block.arm == arm])
        return ArmConditions(means.sm_clock_mhz, means.throttle_reasons)

    others = [] if is_cpu else reader.telemetry.processes(name)
    return Conditions(
        of_arm(Arm.A),
        of_arm(Arm.B),
        sum(one.retries for one in sums),
        sum(one.recorded_steps for one in sums),
        sum(
            block.last_step - block.first_step + 1 - one.steps
            for block, one in zip(blocks, sums, strict=True)
        ),
        [row.name or f"process {row.pid}" for row in others if row.is_own == 0],
        _other_cores(reader, blocks, run.versions) if is_cpu else None,
    )


def _other_cores(reader: LogReader, blocks: Sequence[MeasurementBlockRow], versions: str) -> float | None:
    """Return the cores that other processes used on average; None if not measured."""
    cores = json_object(versions).get("cpu_cores")
    samples = reader.measurements.cpu_pcts(blocks[0].first_step, blocks[-1].last_step)
    used = [
        host * cores / 100 - process / 100
        for host, process in samples
        if host is not None and process is not None and type(cores) is int
    ]
    return max(0.0, fmean(used)) if used else None
