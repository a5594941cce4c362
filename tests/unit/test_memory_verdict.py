"""The verdict on a run's memory is the most severe that the evidence supports."""

from typing import Any

from harness.analysis.memory.pressure import Pressure
from harness.analysis.memory.verdict import MemoryEvidence, MemoryState, MemoryVerdict, cap_refusal, verdict
from harness.records.memory import LeakRow, LeakSeries, LeakVerdict
from harness.records.run import EventKind, EventRow, Severity
from tests.store_factories import a_step

GIB = 2**30
CALM = Pressure(10 * GIB, 48 * GIB, "its cap")
TIGHT = Pressure(46 * GIB, 48 * GIB, "its cap")


def a_leak(series: LeakSeries, verdict: LeakVerdict) -> LeakRow:
    message = f"{series} {verdict}."
    return LeakRow(1, 900, series, verdict, 100, 1e6, 9e5, 2e6, 10**9, 1_000, 5e4, message, None)


def an_oom(severity: Severity) -> EventRow:
    return EventRow(1, 7, EventKind.OOM, severity, "out of memory", "It did not fit.", "{}", None)


def judged(**evidence: Any) -> MemoryVerdict:
    nothing: dict[str, Any] = {
        "pressure": None,
        "leaks": (),
        "ooms": (),
        "recent": [a_step(1)],
    }
    return verdict(MemoryEvidence(**nothing | evidence))


def test_without_evidence_the_verdict_is_unknown() -> None:
    assert judged().state is MemoryState.UNKNOWN


def test_a_run_that_ended_before_its_first_sample_does_not_promise_one() -> None:
    sentence = judged(recent=[a_step(1)._replace(peak_allocated_bytes=15 << 20)]).sentence
    assert sentence == "The last steps peaked at 15.0 MiB; the memory available to the run is not in its log."


def test_a_run_with_free_memory_fits_and_says_how_much_is_free() -> None:
    result = judged(pressure=CALM)
    assert result.state is MemoryState.FITS
    assert "38.0 GiB free" in result.sentence
    assert "leak" not in result.sentence


def test_nothing_fits_before_a_step_has_shown_what_it_needs() -> None:
    result = judged(pressure=CALM, recent=())
    assert result.state is MemoryState.UNKNOWN
    assert "No step has finished" in result.sentence


def test_that_nothing_leaks_is_claimed_only_after_observing_every_series() -> None:
    steady = a_leak(LeakSeries.ALLOCATED, LeakVerdict.STEADY)
    early = a_leak(LeakSeries.HOST, LeakVerdict.TOO_EARLY)
    assert "nothing leaks" in judged(pressure=CALM, leaks=[steady]).sentence
    assert "nothing leaks" not in judged(pressure=CALM, leaks=[steady, early]).sentence


def test_without_a_limit_on_the_cpu_memory_is_that_of_all_processes() -> None:
    recent = [a_step(1)._replace(peak_allocated_bytes=GIB)]
    result = judged(pressure=CALM._replace(is_of_machine=True), recent=recent)
    assert "All processes together use 10.0 GiB" in result.sentence
    assert "peaked at 1.00 GiB" in result.sentence


def test_the_most_severe_verdict_is_given() -> None:
    leak = a_leak(LeakSeries.ALLOCATED, LeakVerdict.LEAK)
    assert judged(pressure=TIGHT).state is MemoryState.TIGHT
    assert judged(pressure=TIGHT, leaks=[leak]).state is MemoryState.LEAK
    assert judged(pressure=TIGHT, leaks=[leak], ooms=[an_oom(Severity.ERROR)]).state is MemoryState.OUT
    assert judged(pressure=CALM, ooms=[an_oom(Severity.WARNING)]).state is MemoryState.RECOVERED


def test_a_run_that_was_refused_for_its_cap_does_not_fit_well() -> None:
    message = "memory_cap_gib cannot be 0.1: the smallest cap that works now is 0.127."
    refused = EventRow(1, 2, EventKind.ERROR, Severity.ERROR, "failed", message, "", None)
    details = ['{"setting": "memory_cap_gib"}', '{"setting": "amp"}', "[]", "{"]
    refusals = [cap_refusal([an_oom(Severity.WARNING), refused._replace(detail=text)]) for text in details]
    assert refusals == [refused._replace(detail=details[0]), None, None, None]
    assert judged(pressure=CALM, refusal=refusals[0]) == MemoryVerdict(MemoryState.REFUSED, message)


def test_the_newest_verdict_of_a_series_counts() -> None:
    leak = a_leak(LeakSeries.ALLOCATED, LeakVerdict.LEAK)
    assert judged(pressure=CALM, leaks=[leak, leak._replace(verdict="steady")]).state is MemoryState.FITS
    assert judged(leaks=[a_leak(LeakSeries.HOST, LeakVerdict.WATCH)]).state is MemoryState.WATCH


def test_growing_reserved_memory_is_fragmentation() -> None:
    leak = a_leak(LeakSeries.FRAGMENTATION, LeakVerdict.LEAK)
    assert judged(leaks=[leak]).state is MemoryState.FRAGMENTING


def test_an_allocator_with_many_retries_is_fragmented() -> None:
    rows = [
        a_step(step)._replace(
            alloc_retries=step, reserved_bytes=48 * GIB, peak_allocated_bytes=20 * GIB, flags=0
        )
        for step in range(10)
    ]
    result = judged(pressure=CALM, recent=rows)
    assert result.state is MemoryState.FRAGMENTING
    assert "9 times" in result.sentence
    assert "28.0 GiB" in result.sentence
    assert "retried 1 time after" in judged(pressure=CALM, recent=rows[:2]).sentence
    assert judged(pressure=CALM, recent=[row._replace(alloc_retries=4) for row in rows]).state is (
        MemoryState.FITS
    )
