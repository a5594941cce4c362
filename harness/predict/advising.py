"""Advice from predictions: the largest batch that fits, and the effect of single changes of settings. Each
figure is a prediction of its own; none is extrapolated."""

from collections.abc import Generator, Iterator, Mapping
from math import inf, isqrt
from typing import Any, NamedTuple

from harness.catalog import model
from harness.errors import SettingError
from harness.predict.answer import (
    Advice,
    Answer,
    Impossible,
    Prediction,
    Remedy,
    Target,
    available_bytes,
    fits,
    is_cap_too_small,
    limit_of,
)
from harness.predict.question import Question
from harness.records.run import AmpMode, DeviceKind
from harness.settings import Settings
from harness.settings.spec import SPECS, change

# Yields the questions it needs answered, one by one.
AdviceSteps = Generator[Question, Answer, Advice]

_MOST_TRIES = 8
# The search ends within this share of the largest batch.
_NEAR_ENOUGH = 0.01
# The ratio of the nearest trials that do not fit and fit above which the line between them is not trusted.
_WIDE = 1.1
# Minimum saving of a remedy, as a share of the peak.
_LEAST_SAVING = 0.01
# Ampere; older GPUs emulate bfloat16.
_BF16_CAPABILITY = (8, 0)


class AdvisedChange(NamedTuple):
    """A change of settings for `harness.settings.spec.change`, and its label."""

    label: str
    changes: Mapping[str, Any]


def advise(settings: Settings, target: Target, prediction: Prediction) -> AdviceSteps:
    """Return advice on a run with `settings` and their `prediction`."""
    limit_bytes, limit_words = limit_of(settings, target)
    free_bytes = available_bytes(prediction, settings, target)
    largest = None
    if free_bytes is not None:
        largest = yield from find_largest_batch(settings, target, prediction, free_bytes)
    remedies = []
    for label, changes in single_changes(settings, target, largest):
        try:
            changed = change(settings, changes)
        except SettingError:
            continue
        answer = yield Question.of(changed, target)
        if isinstance(answer, Impossible):
            continue
        saved = prediction.needed_bytes - answer.needed_bytes
        if saved > _LEAST_SAVING * prediction.needed_bytes:
            fitting = fits(answer, changed, target)
            remedies.append(Remedy(label, dict(changes), answer.needed_bytes, saved, fitting))
    remedies.sort(key=lambda remedy: (remedy.fits is not True, -remedy.saved_bytes))
    return Advice(limit_bytes, limit_words, fits(prediction, settings, target), largest, tuple(remedies))


def single_changes(settings: Settings, target: Target, largest_batch: int | None) -> Iterator[AdvisedChange]:
    """Yield single changes that may lower the peak. The optimizer stays: another one changes the training."""
    if settings.amp is AmpMode.OFF:
        capability = target.capability
        is_old = capability is not None and capability < _BF16_CAPABILITY
        mode = AmpMode.FP16 if is_old and target.kind is DeviceKind.CUDA else AmpMode.BF16
        yield AdvisedChange(f"mixed precision ({mode.value})", {"amp": mode.value})
    if not settings.activation_checkpointing and model(settings.model).can_checkpoint:
        yield AdvisedChange("activation checkpointing", {"activation_checkpointing": True})
    if target.kind is DeviceKind.CUDA and not settings.offload_saved_tensors:
        yield AdvisedChange("offload saved tensors", {"offload_saved_tensors": True})
    if not settings.set_to_none:
        yield AdvisedChange("zero_grad(set_to_none)", {"set_to_none": True})
    batch = settings.batch_size
    if batch > 1:
        parts = _parts(batch, largest_batch)
        smaller, accumulation = -(-batch // parts), settings.grad_accumulation * parts
        yield AdvisedChange(
            f"batch {smaller}, accumulated {accumulation} times",
            {"batch_size": smaller, "grad_accumulation": accumulation},
        )
        fitting = batch // 2 if largest_batch is None or largest_batch >= batch else largest_batch
        if fitting:
            yield AdvisedChange(f"batch {fitting}", {"batch_size": fitting})


def _parts(batch: int, largest_batch: int | None) -> int:
    """Return the number of micro-batches, a power of two, such that one fits the limit if there is one."""
    parts = 2
    while largest_batch and batch / parts > largest_batch and parts * 2 <= batch:
        parts *= 2
    return parts


def find_largest_batch(
    settings: Settings, target: Target, prediction: Prediction, free_bytes: int
) -> Generator[Question, Answer, int]:
    """Search the largest batch that fits, to within 1 %. Each trial is predicted; the next one is chosen on
    the line through the two nearest trials. (Most peaks are piecewise linear in the batch, with a kink where
    the peak moves to another phase; that of a loss over all pairs is a parabola.)"""
    most = int(SPECS["batch_size"].maximum or settings.batch_size)
    tried = {settings.batch_size: prediction}
    below = (0, prediction.static_bytes)  # The largest batch known to fit, and the bytes it needs.
    above: tuple[int, int] | None = None
    last_ratio = inf
    # If the baseline is too large for the limit, no batch fits, unless the inputs are the larger part of it.
    is_baseline_too_large = prediction.static_bytes > free_bytes
    is_baseline_too_large |= is_cap_too_small(prediction, settings, target)
    batch = 1 if is_baseline_too_large else settings.batch_size
    for _ in range(_MOST_TRIES):
        if batch not in tried:
            answer = yield Question.of(change(settings, {"batch_size": batch}), target)
            if isinstance(answer, Impossible):
                break
            tried[batch] = answer
        needed = tried[batch].needed_bytes
        slope = (needed - below[1]) / max(1, batch - below[0])
        if fits(tried[batch], change(settings, {"batch_size": batch}), target):
            below = (batch, needed)
        else:
            above = (batch, needed)
        if above is not None:
            slope = (above[1] - below[1]) / (above[0] - below[0])
        batch = most if slope <= 0 else below[0] + int((free_bytes - below[1]) / slope)
        if above is None:
            batch = min(most, batch)
        else:
            batch, ratio = min(max(batch, below[0] + 1), above[0] - 1), above[0] / max(1, below[0])
            if ratio > max(_WIDE, last_ratio / 2):  # A peak that bends is far from the line.
                batch = isqrt(max(1, below[0]) * above[0])
            last_ratio = ratio
        if batch <= below[0] * (1 + _NEAR_ENOUGH) and (below[0] > 0 or batch < 1):
            break
        batch = max(1, batch)
    return below[0]
