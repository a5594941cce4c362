"""Notices on the machine: one for each condition that calls for attention, and none otherwise."""

import pytest

from harness.analysis.machine.notices import (
    CpuFacts,
    GpuFacts,
    MachineNotice,
    Tone,
    calm_sentence,
    machine_notices,
)
from harness.records.telemetry import ThrottleReason

GIB = 2**30
CALM = GpuFacts("H200", 0, 20 * GIB, 140 * GIB, 0, 1, 0, 0, 80.0)


def of(gpu: GpuFacts) -> list[MachineNotice]:
    return machine_notices([gpu], 10 * GIB, 100 * GIB)


def test_a_healthy_machine_has_no_notices() -> None:
    assert of(CALM) == []
    assert machine_notices([], None, None) == []
    unreported = GpuFacts("H200", None, None, None, None, 1, None, None, None)
    assert of(unreported) == []


@pytest.mark.parametrize(
    ("gpu", "tone", "words"),
    [
        (CALM._replace(throttle_reasons=ThrottleReason.SW_THERMAL), Tone.BAD, "temperature limit"),
        (CALM._replace(throttle_reasons=ThrottleReason.HW_THERMAL), Tone.BAD, "too hot"),
        (CALM._replace(throttle_reasons=ThrottleReason.POWER_CAP), Tone.NOTE, "normal under full load"),
        (CALM._replace(ecc_uncorrected=2), Tone.BAD, "2 uncorrectable memory errors"),
        (CALM._replace(strangers=1, strangers_bytes=3 * GIB), Tone.WARNING, "3.00 GiB"),
        (CALM._replace(strangers=2, strangers_bytes=None), Tone.WARNING, "2 other processes"),
        (CALM._replace(memory_used_bytes=139 * GIB), Tone.WARNING, "almost full"),
    ],
)
def test_each_condition_gives_a_notice(gpu: GpuFacts, tone: Tone, words: str) -> None:
    (notice,) = of(gpu)
    assert notice.tone is tone
    assert words in notice.sentence
    assert "H200" in notice.sentence


def test_other_processes_on_a_gpu_without_a_run_give_no_notice() -> None:
    assert of(CALM._replace(runs=0, strangers=3)) == []


def test_full_ram_gives_a_notice() -> None:
    (notice,) = machine_notices([CALM], 97 * GIB, 100 * GIB)
    assert notice.tone is Tone.BAD
    assert "RAM" in notice.sentence
    assert machine_notices([CALM], 94 * GIB, 100 * GIB) == []


def test_more_busy_threads_than_cores_give_a_notice_with_the_load() -> None:
    (notice,) = machine_notices([], None, None, CpuFacts(99.6, 7.08, 2))
    assert notice.tone is Tone.WARNING
    assert "All 2 cores are 100 % busy" in notice.sentence
    assert "is 7.1:" in notice.sentence


@pytest.mark.parametrize(
    "cpu", [CpuFacts(), CpuFacts(60.0, 7.0, 2), CpuFacts(100.0, 2.2, 2), CpuFacts(100.0, None, 2), None]
)
def test_processors_that_one_training_keeps_busy_give_none(cpu: CpuFacts | None) -> None:
    assert machine_notices([], None, None, cpu) == []


def test_the_most_severe_comes_first() -> None:
    gpu = CALM._replace(throttle_reasons=ThrottleReason.POWER_CAP, strangers=1)
    assert [notice.tone for notice in machine_notices([gpu], 97, 100)] == [Tone.BAD, Tone.WARNING, Tone.NOTE]


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        ([], "Nothing stands out."),
        ([CALM], "the GPU is busy"),
        ([CALM._replace(util_pct=0.0)], "the GPU is idle"),
        ([CALM, CALM._replace(util_pct=0.0)], "1 of 2 GPUs is busy"),
    ],
)
def test_a_calm_machine_is_one_sentence(gpus: list[GpuFacts], words: str) -> None:
    assert words in calm_sentence(gpus)


def test_an_almost_full_disk_of_the_runs_is_bad() -> None:
    (notice,) = machine_notices([], None, None, disk_free_bytes=4096)
    assert notice.tone is Tone.BAD
    assert "4.00 KiB free" in notice.sentence
    assert machine_notices([], None, None, disk_free_bytes=GIB) == []
