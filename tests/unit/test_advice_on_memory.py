"""Advice on free memory: a larger batch fits into the cap, the device, and the limit of the process."""

import json

import pytest

from harness.analysis.advice import PredictedPeak, RunEvidence, Suggestion, suggest
from harness.device.protocol import AllocatorReading
from harness.device.testing.device import FAKE_FACTS, FakeDevice
from harness.records.memory import LeakRow, LeakSeries, LeakVerdict, MemorySampleRow, ProcessLimit
from harness.watch.run_row import first_row
from tests.advice_factories import CPU, host_samples, run_evidence, scenarios, settings
from tests.timing_factories import some_steps
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
    unread = [row._replace(peak_allocated_bytes=None) for row in run.steps]
    unmeasured = dict(advice_on(fits._replace(steps=unread))["headroom"].details)
    assert unmeasured["peak with batch 32"] == "n/a"
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


def a_workers_leak(verdict: LeakVerdict = LeakVerdict.LEAK) -> LeakRow:
    slopes = (150_000.0, 149_000.0, 151_000.0)
    return LeakRow(0, 190, LeakSeries.WORKERS, verdict, 66, *slopes, 10**7, None, None, "It grows.", None)


def test_no_workers_are_added_while_those_of_the_run_leak() -> None:
    run = run_evidence(some_steps(200, wait=200.0), CPU, {"amp": "off", "num_workers": 1})
    assert "num_workers" in advice_on(run)["input-bound"].change
    steady = run._replace(leaks=[a_workers_leak(LeakVerdict.STEADY)])
    assert "num_workers" in advice_on(steady)["input-bound"].change
    advice = advice_on(run._replace(leaks=[a_workers_leak()]))["input-bound"]
    assert (advice.change, advice.code) == ({}, "")
    assert advice.by_hand.startswith(
        "Do not add workers while those of this run leak: their memory has grown by 146 KiB per step since "
        "step 66"
    )
    assert dict(advice.details)["growth of the workers' memory"] == "146 KiB per step"


def test_the_memory_that_a_leak_will_fill_is_not_called_free() -> None:
    run = SCENARIOS["headroom"]
    assert "headroom" not in advice_on(run._replace(leaks=[a_workers_leak()]))
    assert "headroom" in advice_on(run._replace(leaks=[a_workers_leak(LeakVerdict.WATCH)]))


def test_a_script_with_unknown_workers_gets_no_line_for_more_of_them_while_they_leak() -> None:
    run = run_evidence(some_steps(200, wait=200.0), CPU, {"amp": "off"})._replace(names=frozenset({"amp"}))
    assert advice_on(run)["input-bound"].code
    advice = advice_on(run._replace(leaks=[a_workers_leak()]))["input-bound"]
    assert (advice.code, "Use more loader workers" in advice.by_hand) == ("", False)


def test_the_gain_of_more_workers_is_unknown_while_other_programs_have_the_processors() -> None:
    run = run_evidence(some_steps(200, wait=10.0), CPU, {"amp": "off"})
    assert advice_on(run)["input-bound"].gain.share == pytest.approx(0.5)
    advice = advice_on(run._replace(host_samples=host_samples(98.0, 60.0), torch_threads=1))
    assert (advice["input-bound"].change, advice["input-bound"].gain.share) == ({"num_workers": 1}, None)
    assert "times as fast" not in advice["input-bound"].gain.sentence
    assert "workers that compute wait for a core" in advice["input-bound"].by_hand
    assert "busy-host" in advice


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
