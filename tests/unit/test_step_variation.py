"""Test how steps that differ in size are recognized, and that sampled peaks alone do not make them differ."""

import random
from collections.abc import Iterable

import pytest

from harness.analysis.leak.detector import LEAST_WHERE_STEPS_DIFFER, LeakDetector
from harness.analysis.leak.growth import LEAST_FOR_LEAK
from harness.analysis.leak.variation import StepVariation
from harness.device.cpu.heap import Heap, HeapMeter, Mallinfo2
from harness.records.memory import LeakVerdict
from harness.records.run import StepRow
from tests.leak_factories import GIB, MIB, a_row

KIB = 1024
# Peaks above the ends of steps, in KiB, of a script that trains four blocks under activation checkpointing
# with 256 samples in every step of 160 ms: the sampling thread catches them in different blocks.
SAMPLED_KIB = (4352, 2576, 4353, 2834, 8, 4352, 4352, 2835, 2840, 2835, 2836, 2577, 2572, 2841, 3099, 4351)
# Its memory at the ends of the forward passes, relative to the ends of the steps.
FORWARD_ENDS_KIB = (-15415, -15378, -15377, -15378, -15377, -15377, -15378, -15377)


def variation(
    sampled_kib: Iterable[int], forward_ends_kib: Iterable[int], batches: Iterable[int] = (256,) * 64
) -> StepVariation:
    result = StepVariation()
    for step, (peak, batch) in enumerate(zip(sampled_kib, batches, strict=False), 6):
        result.add_step(a_row(step)._replace(samples=batch, tokens=None), peak * KIB)
    result.set_forward_ends([end * KIB for end in forward_ends_kib])
    return result


def test_uniform_steps_do_not_differ_by_the_moment_at_which_their_peaks_were_caught() -> None:
    assert not variation(SAMPLED_KIB * 4, FORWARD_ENDS_KIB * 8).differs()


def test_steps_differ_by_their_peaks_where_no_forward_pass_is_known() -> None:
    assert variation(SAMPLED_KIB * 4, ()).differs()


def test_steps_of_random_lengths_differ_where_activations_are_computed_again() -> None:
    # 8 sequences of 20 to 200 positions in three layers: peaks of 4 to 20 MiB.
    ends = [-chance for chance in random.Random(3).choices(range(20, 2000), k=64)]
    assert variation([4202, 8843, 20168, 8000] * 16, ends).differs()


def test_steps_differ_in_samples_where_no_memory_is_measured_within_them() -> None:
    batches = random.Random(3).choices(range(8, 128), k=64)
    assert variation([0] * 64, (), batches).differs()
    assert not variation([0] * 64, ()).differs()


def test_steps_of_less_than_a_mebibyte_do_not_differ_in_samples() -> None:
    assert not variation([100] * 64, (), random.Random(3).choices(range(8, 128), k=64)).differs()


def test_the_last_batch_of_an_epoch_is_no_difference() -> None:
    assert not variation([0] * 64, (), [256] * 15 * 4 + [32] * 4).differs()


def first_call(rows: Iterable[StepRow], forward_ends: Iterable[int]) -> int | None:
    detector, known = LeakDetector(on_cpu=True), list[int]()
    for row, end in zip(rows, forward_ends, strict=False):
        known = [*known[-63:], end]
        detector.add_steps([row])
        detector.add_host(row.step, None, 0, forward_end_bytes=known)
        if row.step % 5 == 0 and any(one.verdict == LeakVerdict.LEAK for one in detector.judge(row.t_ns)):
            return row.step
    return None


def test_a_leak_in_uniform_steps_is_called_after_the_least_readings() -> None:
    rows = (
        a_row(step, held, rss=held + GIB)._replace(peak_allocated_bytes=held + SAMPLED_KIB[step % 16] * KIB)
        for step in range(1, 500)
        for held in [GIB + step * MIB // 4]
    )
    called = first_call(rows, (FORWARD_ENDS_KIB[step % 8] * KIB for step in range(1, 500)))
    assert called is not None
    assert LEAST_FOR_LEAK <= called <= LEAST_FOR_LEAK + 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_heap_that_rises_while_lengths_vary_is_not_called_a_leak(seed: int) -> None:
    """Each new longest batch leaves holes and buffers, and the rise ends after 300 steps."""
    chance = random.Random(seed)
    longest, rows, ends = 0.0, [], []
    for step in range(1, 900):
        length = chance.betavariate(2, 5)
        longest = max(longest, length)
        live_bytes = GIB + min(step, 300) * MIB // 4 + int(longest * 20 * MIB)
        peak = live_bytes + int(length * chance.uniform(0.6, 1.0) * 50 * MIB)
        rows.append(a_row(step, live_bytes, rss=live_bytes + GIB)._replace(peak_allocated_bytes=peak))
        ends.append(int((length - 0.5) * 20 * MIB))
    assert first_call(rows, ends) is None
    assert LEAST_WHERE_STEPS_DIFFER > 300


def heap_of(*in_use: int) -> Heap:
    """A heap with these bytes in use, one after the other."""
    sizes = iter(in_use)

    def info() -> Mallinfo2:
        return Mallinfo2(uordblks=next(sizes))

    return Heap(info, lambda _padding: 0)


def test_the_heap_at_the_end_of_the_forward_pass_is_relative_to_the_end_of_its_step() -> None:
    # Of each step the end of the forward and of the backward pass, and the reading. One is not noted.
    meter = HeapMeter(heap_of(1000, 1500, 1700, 1200, 1250, 1100, 1600, 1300))
    meter.begin()
    for notes in (2, 0, 2):
        for _ in range(notes):
            meter.note()
        meter.read()
    assert list(meter.forward_ends) == [300, -200]
