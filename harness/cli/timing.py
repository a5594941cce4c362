"""The timing of a run's last steps, as two text lines and as JSON."""

from typing import Any

from harness import words
from harness.analysis.timing.phases import ClockTimes, part_label
from harness.analysis.timing.verdict import verdict
from harness.errors import LogError
from harness.records.run import DeviceFacts
from harness.store.folder import RunFolder
from harness.store.reader import LogReader
from harness.supervisor.timing import RunTiming, read_timing

_STEPS = 1_000


def last_timing(folder: RunFolder, device: DeviceFacts | None) -> RunTiming | None:
    """Read the timing of the last 1,000 steps; None without a steady-state step or a readable log."""
    try:
        with LogReader(folder.log) as reader:
            extent = reader.extent()
            if extent.first is None or extent.last is None:
                return None
            first = max(extent.first, extent.last - _STEPS + 1)
            history, events = reader.settings_history(), [event for _, event in reader.events()]
            run = read_timing(reader, first, extent.last, device, history, events)
    except LogError:
        return None
    return run if run.timing.cpu is not None else None


def timing_facts(run: RunTiming | None) -> list[tuple[str, str]]:
    """Return two lines: percentiles with the shares of phases; throughput and MFU."""
    if run is None or run.timing.best is None or run.timing.cpu is None:
        return []
    timing, step = run.timing, run.timing.cpu.step
    clock = "on the device" if timing.device is not None else "on the CPU"
    percentiles = " / ".join(words.duration(value) for value in step[:3])
    mfu = words.percent(None if timing.mfu is None else 100 * timing.mfu)
    rates = [words.rate(timing.samples_per_s)]
    if timing.tokens_per_s is not None:
        rates.append(words.rate(timing.tokens_per_s, "tokens"))
    bound = " (lower bound)" if run.arithmetic.uncounted else ""
    flops = timing.model_flops_per_s
    rates.append(f"FLOP/s {words.NOT_AVAILABLE}" if flops is None else f"{words.flops(flops)}{bound}")
    rates.append(f"MFU {mfu}")
    over = f"{percentiles} over {words.plural(timing.examined, 'step')}"
    return [
        ("p50 / p95 / p99", f"{over}; {clock} {_shares(run.timing.best)}"),
        ("rates", ", ".join(rates)),
    ]


def _shares(times: ClockTimes) -> str:
    parts = [f"{part_label(row.part)} {words.percent(100 * row.share)}" for row in times.parts]
    return ", ".join(parts)


def timing_json(run: RunTiming | None) -> dict[str, Any] | None:
    """Return the timing for JSON: nanoseconds, shares from 0 to 1, FLOP/s."""
    timing = None if run is None else run.timing
    if run is None or timing is None or timing.cpu is None:
        return None
    return {
        "first_step": timing.first,
        "last_step": timing.last,
        "steps": timing.examined,
        "left_out": timing.left_out,
        "cpu": _clock_json(timing.cpu),
        "device": None if timing.device is None else _clock_json(timing.device),
        "launch_bound_share": None if timing.launch is None else timing.launch.share,
        "samples_per_s": timing.samples_per_s,
        "tokens_per_s": timing.tokens_per_s,
        "model_flops_per_s": timing.model_flops_per_s,
        "executed_flops_per_s": timing.executed_flops_per_s,
        "uncounted": list(run.arithmetic.uncounted),
        "mfu": timing.mfu,
        "peak": None if run.arithmetic.peak is None else run.arithmetic.peak._asdict(),
        "verdict": verdict(timing, run.is_asynchronous)._asdict(),
    }


def _clock_json(times: ClockTimes) -> dict[str, Any]:
    return {
        "step_ns": times.step._asdict(),
        "parts": {row.part.value: row.spread._asdict() | {"share": row.share} for row in times.parts},
    }
