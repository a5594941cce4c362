"""Alerts on memory, and none for a healthy run."""

from harness.analysis.memory.alerts import Urgency, alerts, current_leaks
from harness.analysis.memory.pressure import Pressure
from harness.records.memory import LeakRow, LeakSeries, LeakVerdict
from harness.records.run import EventKind, EventRow, Severity
from tests.store_factories import a_step

MIB = 2**20


def a_verdict(
    series: LeakSeries, verdict: LeakVerdict, slope: float | None = 1.5 * MIB, left: int | None = 3_000
) -> LeakRow:
    return LeakRow(0, 100, series, verdict, 6, slope, slope, slope, None, left, 1024.0, "It grows.", None)


def an_oom(severity: Severity, step: int = 7) -> EventRow:
    return EventRow(0, step, EventKind.OOM, severity, "out of memory", "It ran out.", "{}", None)


def test_a_healthy_run_has_no_alerts() -> None:
    steady = [a_verdict(series, LeakVerdict.STEADY) for series in LeakSeries]
    assert alerts(Pressure(91, 100, "its cap"), steady, [], [a_step(1)]) == []
    assert alerts(None, [], [], []) == []


def test_a_leak_states_its_slope_and_the_time_left() -> None:
    recent = [a_step(step)._replace(step_ns=100_000_000) for step in range(1, 4)]
    (alert,) = alerts(None, [a_verdict(LeakSeries.ALLOCATED, LeakVerdict.LEAK)], [], recent)
    assert alert.label == "leak 1.50 MiB/step · out of memory in about 3,000 steps (5 min 00 s)"
    assert alert.urgency is Urgency.BAD


def test_the_steps_left_are_those_after_the_newest_step() -> None:
    verdict = a_verdict(LeakSeries.ALLOCATED, LeakVerdict.LEAK, left=131_448)
    (alert,) = alerts(None, [verdict], [], [a_step(101)])
    assert "out of memory in about 130,000 steps (" in alert.label
    verdict = verdict._replace(steps_to_oom=50)
    for step, left in ((90, "50 steps"), (130, "20 steps"), (149, "1 step"), (170, "0 steps")):
        (alert,) = alerts(None, [verdict], [], [a_step(step)._replace(step_ns=100_000_000)])
        assert f"out of memory in about {left} (" in alert.label


def test_growth_that_ends_soon_is_an_alert_before_it_is_called_a_leak() -> None:
    near, far = (a_verdict(LeakSeries.ALLOCATED, LeakVerdict.WATCH, left=left) for left in (900, None))
    (alert,) = alerts(None, [near], [], [])
    assert alert.label == "growing 1.50 MiB/step · out of memory in about 900 steps"
    assert alert.urgency is Urgency.WARNING
    assert alerts(None, [far], [], []) == []


def test_without_a_limit_a_leak_states_no_time() -> None:
    (alert,) = alerts(None, [a_verdict(LeakSeries.HOST, LeakVerdict.LEAK, left=None)], [], [])
    assert alert.label == "leak 1.50 MiB/step"


def test_memory_that_ran_out_before_the_first_step_did_so_at_no_step() -> None:
    (alert,) = alerts(None, [], [an_oom(Severity.ERROR, 0)], [])
    assert alert.label == "out of memory before the first step"


def test_nothing_is_projected_of_a_run_that_is_over() -> None:
    verdict = a_verdict(LeakSeries.ALLOCATED, LeakVerdict.LEAK, left=50)
    (alert,) = alerts(None, [verdict], [], [a_step(1)], is_over=True)
    assert alert.label == "leak 1.50 MiB/step"


def test_a_withdrawn_verdict_gives_no_alert() -> None:
    rows = [
        a_verdict(LeakSeries.FRAGMENTATION, LeakVerdict.LEAK),
        a_verdict(LeakSeries.ALLOCATED, LeakVerdict.LEAK),
        a_verdict(LeakSeries.ALLOCATED, LeakVerdict.STEADY),
    ]
    assert [row.verdict for row in current_leaks(rows)] == [LeakVerdict.STEADY, LeakVerdict.LEAK]
    assert [alert.label.split()[0] for alert in alerts(None, rows, [], [])] == ["fragmenting"]


def test_the_most_urgent_comes_first() -> None:
    all_alerts = alerts(Pressure(98, 100, "its cap"), [], [an_oom(Severity.WARNING)] * 2, [])
    assert [alert.label for alert in all_alerts] == ["memory 98 %", "out of memory ×2 at step 7"]
    assert [alert.urgency for alert in all_alerts] == [Urgency.BAD, Urgency.WARNING]
    assert alerts(None, [], [an_oom(Severity.ERROR)], [])[0].urgency is Urgency.BAD
