"""Test what a prediction says: JSON that reads back, limits, and words."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.device.cap import CPU_HEADROOM_BYTES
from harness.predict.advising import find_largest_batch
from harness.predict.answer import (
    CONTEXT_ALLOWANCE_BYTES,
    OWN_DATA_BYTES,
    Advice,
    Impossible,
    ModuleBytes,
    PartBytes,
    Prediction,
    Remedy,
    Target,
    available_bytes,
    fit_sentence,
    fits,
    from_json,
    limit_of,
    module_rows,
    part_rows,
    peak_sentence,
    remedy_rows,
    to_json,
)
from harness.records.memory import MemoryCategory
from harness.records.run import DeviceKind
from harness.settings import Settings
from harness.settings.resolve import resolve

GIB = 2**30
MIB = 1 << 20

ROWS = [
    Target(DeviceKind.CUDA, "H200", 139 * GIB, (9, 0)),
    Impossible("Its shapes depend on values.", is_passing=True),
    Advice(GIB, "the cap", None, 7, (Remedy("AMP", {"amp": "bf16", "batch_size": 2}, 5, 6, True),)),
]


def a_prediction(
    peak_bytes: int = GIB, least_bytes: int | None = None, context: int | None = 0
) -> Prediction:
    return Prediction(
        target=DeviceKind.CPU if least_bytes is None else DeviceKind.CUDA,
        peak_allocated_bytes=peak_bytes,
        peak_reserved_bytes=least_bytes,
        least_reserved_bytes=least_bytes,
        parts=(
            PartBytes(MemoryCategory.WEIGHTS, peak_bytes // 4),
            PartBytes(MemoryCategory.GRADIENTS, 0),
            PartBytes(MemoryCategory.ACTIVATIONS, peak_bytes - peak_bytes // 4),
        ),
        phase="backward",
        static_bytes=peak_bytes // 4,
        context_bytes=context,
        context_note="The context.",
        modules=(ModuleBytes("", "Transformer", 1, 2, 3, 4), ModuleBytes("head", "Linear", 5, 6, 7, 8)),
        notes=("One.", "Two."),
    )


def settings(**values: object) -> Settings:
    return resolve({"model": "mlp", **values})


def a_target(memory_bytes: int | None) -> Target:
    return Target(DeviceKind.CPU, "the card", memory_bytes)


@pytest.mark.parametrize("row", [*ROWS, a_prediction(), a_prediction(GIB, 2 * GIB, None)], ids=str)
def test_what_is_written_reads_back(row: Target | Impossible | Advice | Prediction) -> None:
    assert from_json(type(row), to_json(row)) == row


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "{}", '{"reason": 3, "is_passing": false}', '{"reason": "", "is_passing": 1}']
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        from_json(Impossible, text)


@pytest.mark.parametrize("name", Prediction._fields)
def test_a_prediction_with_a_field_missing_or_unknown_is_refused(name: str) -> None:
    whole = json.loads(to_json(a_prediction()))
    with pytest.raises(ValueError):
        from_json(Prediction, json.dumps({k: v for k, v in whole.items() if k != name}))
    with pytest.raises(ValueError):
        from_json(Prediction, json.dumps({**whole, "more": 1}))


def test_a_cap_is_the_limit_where_it_is_below_the_devices_memory() -> None:
    assert limit_of(settings(memory_cap_gib=2), a_target(4 * GIB)) == (2 * GIB, "the memory cap of 2.00 GiB")
    assert limit_of(settings(memory_cap_gib=8), a_target(4 * GIB)) == (4 * GIB, "the 4.00 GiB of the card")
    assert limit_of(settings(memory_cap_gib=2), a_target(None))[0] == 2 * GIB
    assert limit_of(settings(), a_target(None)) == (None, "no known limit")


def test_the_devices_memory_also_bears_the_context_and_a_cap_does_not() -> None:
    prediction = a_prediction(GIB, context=GIB)
    assert fits(prediction, settings(), a_target(2 * GIB)) is True
    assert fits(prediction, settings(), a_target(2 * GIB - 1)) is False
    assert fits(prediction, settings(memory_cap_gib=1 + OWN_DATA_BYTES / GIB), a_target(2 * GIB)) is True


def test_without_knowing_the_context_a_near_miss_is_too_close_to_say() -> None:
    prediction = a_prediction(GIB, 2 * GIB, context=None)
    assert fits(prediction, settings(), a_target(2 * GIB + CONTEXT_ALLOWANCE_BYTES)) is True
    assert fits(prediction, settings(), a_target(2 * GIB)) is None
    assert fits(prediction, settings(), a_target(2 * GIB - 1)) is False
    assert fits(prediction, settings(), a_target(None)) is None


def test_rows_show_what_there_is_in_words() -> None:
    assert part_rows(a_prediction()) == [("weights", "256 MiB", "25 %"), ("activations", "768 MiB", "75 %")]
    assert module_rows(a_prediction())[0] == ("(the model)", "Transformer", "1 B", "2 B", "3 B", "4 B")
    assert remedy_rows(ROWS[2]) == [("AMP", "5 B", "6 B", "fits")]  # type: ignore[arg-type]


def test_a_cap_on_the_cpu_also_holds_what_the_process_takes_beside_the_model() -> None:
    capped = settings(memory_cap_gib=1)
    for kind, own_bytes in ((DeviceKind.CPU, OWN_DATA_BYTES), (DeviceKind.CUDA, 0)):
        target = a_target(2 * GIB)._replace(kind=kind)
        assert available_bytes(a_prediction(), capped, target) == GIB - own_bytes


def test_sentences_name_the_peak_the_limit_and_the_difference() -> None:
    assert peak_sentence(a_prediction()) == (
        "Predicted peak: 1.00 GiB allocated, in backward; 256 MiB are the baseline between steps."
    )
    assert "It fits: 1.00 GiB needed" in fit_sentence(a_prediction(), settings(), a_target(2 * GIB))
    assert "516 MiB more than available of the memory cap of 512 MiB" in fit_sentence(
        a_prediction(), settings(memory_cap_gib=0.5), a_target(2 * GIB)
    )
    assert "memory_cap_gib" in fit_sentence(a_prediction(), settings(), a_target(None))
    close = fit_sentence(a_prediction(GIB, GIB, None), settings(), a_target(GIB))
    assert close.startswith("Too close to tell")


def test_a_cap_on_the_cpu_must_leave_headroom_beyond_the_baseline() -> None:
    target = a_target(2 * GIB)
    prediction = a_prediction(GIB // 32)
    smallest = prediction.static_bytes + CPU_HEADROOM_BYTES
    assert fits(prediction, settings(memory_cap_gib=smallest / GIB), target) is True
    too_small = settings(memory_cap_gib=(smallest - MIB) / GIB)
    assert fits(prediction, too_small, target) is False
    assert fit_sentence(prediction, too_small, target) == (
        "It does not fit: the memory cap of 135 MiB is 1.00 MiB too small, since a cap on the CPU must leave "
        "128 MiB beyond the baseline of 8.00 MiB between steps. The steps need 32.0 MiB."
    )
    assert fits(prediction, too_small, target._replace(kind=DeviceKind.CUDA)) is True
    assert fits(prediction, settings(), a_target(64 * MIB)) is True


def largest_batch(
    cap_bytes: int, static_bytes: int, sample_bytes: int, pair_bytes: int = 0
) -> tuple[int, int]:
    """Return the largest batch of a run that needs `sample_bytes` per sample, and `pair_bytes` for each pair
    of samples, and how many predictions that took."""
    capped, target = settings(memory_cap_gib=cap_bytes / GIB), a_target(8 * GIB)

    def predicted(batch: int) -> Prediction:
        peak_bytes = static_bytes + batch * sample_bytes + batch**2 * pair_bytes
        return a_prediction(peak_bytes)._replace(static_bytes=static_bytes)

    prediction = predicted(capped.batch_size)
    free_bytes = available_bytes(prediction, capped, target)
    assert free_bytes is not None
    search, count = find_largest_batch(capped, target, prediction, free_bytes), 0
    answer = None
    while True:
        try:
            question = next(search) if answer is None else search.send(answer)
        except StopIteration as end:
            return end.value, count
        answer, count = predicted(question.settings.batch_size), count + 1


@given(
    headroom_bytes=st.integers(-12 * MIB, 2 * GIB),
    static_bytes=st.integers(1, GIB),
    sample_bytes=st.integers(1024, 64 * MIB),
)
def test_the_largest_batch_fits_and_one_much_larger_does_not(
    headroom_bytes: int, static_bytes: int, sample_bytes: int
) -> None:
    cap_bytes = static_bytes + CPU_HEADROOM_BYTES + OWN_DATA_BYTES + headroom_bytes
    batch, count = largest_batch(cap_bytes, static_bytes, sample_bytes)
    assert count <= 8
    room_bytes, is_refused = CPU_HEADROOM_BYTES + headroom_bytes, headroom_bytes < -OWN_DATA_BYTES
    expected = 0 if is_refused else min(65536, room_bytes // sample_bytes)
    assert 0.98 * expected - 1 <= batch <= expected
    if is_refused:
        assert count == 1


@pytest.mark.parametrize("headroom_bytes", [32 * MIB, 256 * MIB, 2 * GIB])
@pytest.mark.parametrize("pair_bytes", [4, 16, 64])
def test_the_largest_batch_of_a_loss_over_all_pairs_is_found(headroom_bytes: int, pair_bytes: int) -> None:
    cap_bytes = MIB + CPU_HEADROOM_BYTES + OWN_DATA_BYTES + headroom_bytes
    batch, count = largest_batch(cap_bytes, MIB, 1024, pair_bytes)
    expected = ((CPU_HEADROOM_BYTES + headroom_bytes) / pair_bytes) ** 0.5
    assert 0.8 * expected < batch <= expected
    assert count <= 10
