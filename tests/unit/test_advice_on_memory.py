"""Advice on free memory: a larger batch fits into the cap, the device, and the limit of the process."""

import json

import pytest

from harness.analysis.advice import PredictedPeak, RunEvidence, Suggestion, suggest
from harness.device.protocol import AllocatorReading
from harness.device.testing.device import FAKE_FACTS, FakeDevice
from harness.records.memory import MemorySampleRow, ProcessLimit
from harness.watch.run_row import first_row
from tests.advice_factories import scenarios, settings
from tests.train_factories import CPU_FACTS

GIB = 2**30
SCENARIOS = scenarios()


def advice_on(run: RunEvidence) -> dict[str, Suggestion]:
    return {one.rule: one for one in suggest(run)}


def test_a_larger_batch_needs_free_memory_by_a_prediction_or_by_this_runs_peak() -> None:
    run = SCENARIOS["headroom"]
    assert "by a line through" in dict(advice_on(run)["headroom"].details)["peak with batch 64"]
    fits = run._replace(predicted_peak=PredictedPeak(64, 40 * GIB))
    assert "40.0 GiB, predicted" in dict(advice_on(fits)["headroom"].details)["peak with batch 64"]
    assert "headroom" not in advice_on(run._replace(predicted_peak=PredictedPeak(64, 46 * GIB)))
    unknown = run._replace(settings=settings(memory_cap_gib=None))
    assert "headroom" not in advice_on(unknown)


@pytest.mark.parametrize("cap_gib", [None, 48.0])
def test_a_larger_batch_stays_within_the_limit_of_the_process(cap_gib: float | None) -> None:
    # The machine, or the cap, has more than the limit.
    free = MemorySampleRow(1, 1, 1, GIB, GIB, *(None,) * 6, 4 * GIB, 64 * GIB)
    run = SCENARIOS["headroom"]._replace(settings=settings(memory_cap_gib=cap_gib), memory=free)
    run = run._replace(predicted_peak=PredictedPeak(64, 40 * GIB))
    assert "headroom" in advice_on(run)
    within = advice_on(run._replace(process_limit_bytes=46 * GIB))["headroom"]
    assert dict(within.details)["memory available to this run"] == "46.0 GiB"
    assert "headroom" not in advice_on(run._replace(process_limit_bytes=41 * GIB))


class LimitedDevice(FakeDevice):
    """A device in a process with `ulimit -d`, which leaves 10 bytes."""

    def read_allocator(self) -> AllocatorReading:
        limit = ProcessLimit("ulimit -d", 600, 590, 200)
        return super().read_allocator()._replace(reserved_bytes=300, process_limit=limit)


@pytest.mark.parametrize(
    ("device", "expected"),
    [(LimitedDevice(CPU_FACTS), 310), (FakeDevice(CPU_FACTS), None), (LimitedDevice(FAKE_FACTS), None)],
    ids=["limited", "unlimited", "on a GPU"],
)
def test_a_run_on_the_cpu_records_what_its_heap_may_reach_under_a_limit_of_the_process(
    device: FakeDevice, expected: int | None
) -> None:
    versions = json.loads(first_row("id", "name", "{}", device).versions)
    assert versions["process_limit_bytes"] == expected
