"""The cards of the Profiler page: timing in, texts out. Missing figures state the reason."""

from typing import NamedTuple

from dashboard.charts.cards import NO_SAMPLES, Card
from harness import words
from harness.analysis.timing.phases import StepPart, Timing


class TimingCardData(NamedTuple):
    """The data of the cards."""

    timing: Timing
    is_asynchronous: bool
    peak_flops_per_s: float | None
    math_type: str | None
    peak_source: str
    # Why there is no MFU.
    reason: str
    uncounted: tuple[str, ...]


def cards(source: TimingCardData) -> list[Card]:
    """Build all cards, in their order on the page."""
    return [*_steps(source.timing), *_throughput(source.timing), *_arithmetic(source), _gap(source)]


def _card(key: str, label: str, value: str, note: str, text: str, color: str, tone: str = "plain") -> Card:
    is_missing = value == words.NOT_AVAILABLE
    return Card(key, label, value, note, tone, text, color, [], missing=is_missing)


def _steps(timing: Timing) -> list[Card]:
    step = None if timing.cpu is None else timing.cpu.step
    settled = (
        f"of {words.plural(timing.examined, 'steady-state step')}; warm-up and transition steps excluded"
    )
    meanings = {
        "p50": f"Half of the steps took no longer than this: the median {settled}.",
        "p95": "One step in twenty took longer than this.",
        "p99": "One step in a hundred took longer than this; of fewer than 100, nearly the longest.",
    }
    percentile_cards = []
    for name, meaning in meanings.items():
        value: float | None = None if step is None else getattr(step, name)
        note = "" if step is None else words.plural(timing.examined, "step")
        if value is not None and step is not None and step.p50 and name != "p50":
            note = f"{words.figure(value / step.p50, 3)} × median"
        percentile_cards.append(_card(name, f"Step {name}", words.duration(value), note, meaning, "step"))
    return percentile_cards


def _throughput(timing: Timing) -> list[Card]:
    text = "Samples trained on, over the time of the steady-state steps."
    if timing.samples_per_s is None and timing.examined:
        text = f"No throughput of these steps: {NO_SAMPLES}."
    samples = words.count(timing.samples_per_s) if _large(timing.samples_per_s) else None
    throughput = samples or words.figure(timing.samples_per_s, 3)
    tokens = "Tokens trained on, over the same time; n/a if the data is not text."
    return [
        _card("samples", "Samples/s", throughput, "", text, "loss"),
        _card("tokens", "Tokens/s", words.count(timing.tokens_per_s), "", tokens, "loss"),
    ]


def _large(value: float | None) -> bool:
    return value is not None and value >= 100


def _arithmetic(source: TimingCardData) -> list[Card]:
    timing = source.timing
    text = (
        "Floating-point operations per second of the model's matrix products and convolutions, forward and "
        "backward, counted once on tensors without data; recomputation by checkpointing is excluded."
    )
    note, tone = "", "plain"
    model, executed = timing.model_flops_per_s, timing.executed_flops_per_s
    if model is None:
        text = source.reason or text
    elif source.uncounted:
        note, tone = "lower bound", "warn"
        text += f" Not counted: {', '.join(source.uncounted)}."
    elif executed is not None and executed > 1.001 * model:
        note = f"{words.percent(100 * (executed / model - 1))} more executed"
    mfu = None if timing.mfu is None else 100 * timing.mfu
    of_peak = "" if mfu is None else f"of {words.flops(source.peak_flops_per_s)}"
    meaning = (
        f"Model FLOP/s utilization: the previous figure as a share of the device's dense "
        f"{source.math_type} peak ({source.peak_source})."
        if mfu is not None
        else source.reason or "No steady-state step."
    )
    return [
        _card("flops", "FLOP/s", words.flops(model), note, text, "util", tone),
        _card("mfu", "MFU", words.percent(mfu), of_peak, meaning, "util"),
    ]


def _gap(source: TimingCardData) -> Card:
    device = source.timing.device
    spread = None if device is None else device.spread(StepPart.GAP)
    if device is None or spread is None:
        reason = "This device runs synchronously with the CPU and has no clock of its own."
        if source.is_asynchronous:
            reason = "No step was timed on the device."
        return _card("gap", "Device gap", words.NOT_AVAILABLE, "", reason, "h2d")
    text = (
        "Mean time from the end of one step on the device to the start of the next: the device was idle for "
        "at least this long. The note is the share of gaps in the total time."
    )
    share = device.share(StepPart.GAP)
    share_text, tone = words.percent(100 * share), "warn" if share >= 0.1 else "plain"
    note = f"{share_text} idle" if share_text.startswith("<") else f"≥ {share_text} idle"
    return _card("gap", "Device gap", words.duration(spread.mean), note, text, "h2d", tone)
