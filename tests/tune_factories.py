"""Factories for tunes: states with results as a machine would measure them."""

from collections.abc import Callable, Mapping
from typing import Any

from harness.analysis.effect.measured import THROUGHPUT, Word
from harness.device.testing.device import FAKE_FACTS
from harness.records.run import AmpMode, DeviceFacts, DeviceKind
from harness.settings.resolve import resolve
from harness.tune.planning import estimated_s, next_comparison
from harness.tune.rows import PEAK_ALLOCATED, Comparison, Goal, Trial, TrialFigure, TrialOutcome, Tune

CPU = FAKE_FACTS._replace(
    kind=DeviceKind.CPU, name="a CPU", amp_modes=(AmpMode.OFF, AmpMode.BF16), can_compile=False, can_pin=False
)
SAMPLE_NS = 1e6
PEAK_BYTES = 100e6
# The relative time per sample, and the relative peak, of a set of changes.
Machine = Callable[[Mapping[str, Any]], tuple[float, float]]


def a_tune(device: DeviceFacts | None = CPU, **changes: Any) -> Tune:
    """A new tune of the mlp whose baseline has been warmed up."""
    settings = resolve({"model": "mlp", "device": "cpu"}).model_dump(mode="json")
    tune = Tune("20261122-120000-abcd", 1.0, settings, Goal.THROUGHPUT, 3600.0, device=device, step_s=0.01)
    return tune._replace(**{"largest_batch": 100, "limit_words": "the memory of a CPU", **changes})


def a_trial(
    comparison: Comparison,
    time: float = 1.0,
    peak: float = 1.0,
    *,
    before: tuple[float, float] = (1.0, 1.0),
    noise: float = 0.005,
    word: Word | None = None,
    more_pairs: int | None = None,
    duration_s: float = 10.0,
) -> Trial:
    """The result of a comparison in which samples take `time` times as long, and the peak is `peak` times as
    high. `before` are arm A's, relative to the baseline's."""
    less = Word.FASTER if time < 1 else Word.SLOWER
    verdict = word or (Word.NO_PRACTICAL_DIFFERENCE if abs(time - 1) < 0.01 else less)
    before_ns, effect = SAMPLE_NS * before[0], time - 1
    memory = Word.LESS if peak < 0.99 else Word.MORE if peak > 1.01 else Word.NO_PRACTICAL_DIFFERENCE
    figures = (
        TrialFigure(
            "undisturbed time per sample",
            before_ns,
            before_ns * time,
            effect,
            effect - noise,
            effect + noise,
            verdict,
            more_pairs,
        ),
        TrialFigure(
            THROUGHPUT.name,
            1e9 / before_ns,
            1e9 / before_ns / time,
            1 / time - 1,
            1 / time - 1 - noise,
            1 / time - 1 + noise,
            verdict,
        ),
        TrialFigure(
            PEAK_ALLOCATED,
            PEAK_BYTES * before[1],
            PEAK_BYTES * before[1] * peak,
            peak - 1,
            peak - 1.001,
            peak - 0.999,
            memory,
        ),
    )
    samples = int(comparison.changes.get("batch_size", 32))
    return Trial(
        comparison.stage,
        comparison.context,
        comparison.changes,
        TrialOutcome.MEASURED,
        comparison.pairs,
        figures,
        (32, samples),
        "",
        (),
        duration_s,
        duration_s,
        comparison.is_fresh,
    )


def without_memory(comparison: Comparison) -> Trial:
    """The result of a comparison in which memory ran out."""
    trial = a_trial(comparison)
    return trial._replace(outcome=TrialOutcome.OUT_OF_MEMORY, figures=(), message="Memory ran out.", pairs=0)


def completed(tune: Tune, machine: Machine, *, oom_batch: int = 10_000) -> Tune:
    """The tune after all its comparisons on a machine; each takes its estimated time."""
    while (comparison := next_comparison(tune)) is not None:
        whole = {**comparison.context, **comparison.changes}
        before, after = machine(comparison.context), machine(whole)
        if whole.get("batch_size", 0) >= oom_batch:
            trial = without_memory(comparison)
        else:
            ratio = after[0] / before[0], after[1] / before[1]
            trial = a_trial(comparison, *ratio, before=before)
        seconds = estimated_s(tune, comparison)
        tune = tune._replace(
            trials=(*tune.trials, trial._replace(duration_s=seconds, estimated_s=seconds)),
            spent_s=tune.spent_s + seconds,
        )
    return tune
