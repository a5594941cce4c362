"""The alerts of a watch: each cause once, over restarts too."""

import os
import shutil
from pathlib import Path

import pytest

from harness.alerts import AlertKind, AlertOptions, AlertService, AlertWatch
from harness.alerts.alert import RunAlert
from harness.alerts.limits import MOST, REPEAT_S, WINDOW_S, RateLimit
from harness.demo.writing import write
from harness.records.run import EventKind, RunState, Severity
from harness.store.home import Home
from harness.supervisor import Supervisor
from tests.alert_factories import LiveRun, a_live_run, an_alert


@pytest.fixture
def home() -> Home:
    return Home.locate(None, os.environ)


def a_watch(home: Home, history: Path | None = None) -> AlertWatch:
    """A watch that has polled once."""
    watch = AlertWatch(Supervisor(home, is_read_only=True), history)
    watch.poll()
    return watch


def kinds(watch: AlertWatch) -> list[AlertKind]:
    return [alert.kind for alert in watch.poll()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (EventKind.OOM, AlertKind.OOM),
        (EventKind.LEAK, AlertKind.LEAK),
        (EventKind.STALL, AlertKind.STALL),
        (EventKind.NON_FINITE_LOSS, AlertKind.NAN),
    ],
)
def test_an_event_is_one_alert(home: Home, event: EventKind, kind: AlertKind) -> None:
    with a_live_run(home) as run:
        watch = a_watch(home)
        run.put(event, "So it is.")
        (alert,) = watch.poll()
        assert (alert.kind, alert.run) == (kind, "cnn-1")
        assert alert.text == f"{kind.heading}, cnn-1: So it is."
        assert watch.poll() == []


def test_events_that_need_no_attention_are_no_alerts(home: Home) -> None:
    with a_live_run(home) as run:
        watch = a_watch(home)
        run.put(EventKind.SETTING)
        run.put(EventKind.OOM_RECOVERED)
        run.put(EventKind.LEAK, severity=Severity.INFO)
        assert watch.poll() == []


def test_only_the_first_loss_that_is_not_finite_is_an_alert(home: Home) -> None:
    with a_live_run(home) as run:
        watch = a_watch(home)
        for _ in range(3):
            run.put(EventKind.NON_FINITE_LOSS)
            watch.poll()
        run.put(EventKind.NON_FINITE_LOSS)
        run.put(EventKind.STALL)
        assert kinds(watch) == [AlertKind.STALL]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (RunState.FINISHED, [AlertKind.FINISHED]),
        (RunState.FAILED, [AlertKind.FAILED]),
        (RunState.OUT_OF_MEMORY, [AlertKind.OOM]),
        (RunState.STOPPED, []),
    ],
)
def test_the_end_of_a_run_is_one_alert_unless_a_person_asked_for_it(
    home: Home, state: RunState, expected: list[AlertKind]
) -> None:
    with a_live_run(home) as run:
        watch = a_watch(home)
        run.finish(state)
        assert kinds(watch) == expected
        assert watch.poll() == []


def test_running_out_of_memory_and_ending_by_it_is_one_alert(home: Home) -> None:
    with a_live_run(home) as run:
        watch = a_watch(home)
        run.put(EventKind.OOM)
        run.finish(RunState.OUT_OF_MEMORY)
        assert kinds(watch) == [AlertKind.OOM]


def test_a_killed_process_is_lost(home: Home) -> None:
    with a_live_run(home) as run:
        watch = a_watch(home)
        run.kill()
        assert kinds(watch) == [AlertKind.LOST]
        assert watch.poll() == []


def test_a_process_without_a_heartbeat_is_stalled_once(home: Home) -> None:
    with a_live_run(home) as run:
        watch = a_watch(home)
        run.freeze()
        assert kinds(watch) == [AlertKind.STALL]
        assert watch.poll() == []


def test_what_happened_before_the_first_poll_is_not_reported(home: Home) -> None:
    with a_live_run(home, "ended") as ended, a_live_run(home, "live") as live:
        live.put(EventKind.OOM)
        ended.finish()
        watch = a_watch(home)
        assert watch.poll() == []
        live.put(EventKind.LEAK)
        assert kinds(watch) == [AlertKind.LEAK]


def test_a_run_between_two_polls_is_reported(home: Home) -> None:
    watch = a_watch(home)
    with a_live_run(home) as run:
        run.put(EventKind.NON_FINITE_LOSS)
        run.finish()
    assert kinds(watch) == [AlertKind.NAN, AlertKind.FINISHED]
    assert watch.poll() == []


def test_a_restart_repeats_nothing_and_misses_nothing(home: Home, tmp_path: Path) -> None:
    history = tmp_path / "history.json"
    with a_live_run(home, "first") as first, a_live_run(home, "second") as second:
        watch = a_watch(home, history)
        first.put(EventKind.OOM)
        assert kinds(watch) == [AlertKind.OOM]
        second.put(EventKind.LEAK)
        first.finish()
        restarted = AlertWatch(Supervisor(home), history)
        assert sorted(kinds(restarted)) == [AlertKind.FINISHED, AlertKind.LEAK]
        assert AlertWatch(Supervisor(home), history).poll() == []


def test_a_damaged_history_begins_anew(home: Home, tmp_path: Path) -> None:
    history = tmp_path / "history.json"
    with a_live_run(home) as run:
        run.put(EventKind.OOM)
        history.write_text('{"polled_unix_s": 1, "runs": {"a": 3}, "ended": []}')
        assert AlertWatch(Supervisor(home), history).poll() == []
        run.put(EventKind.LEAK)
        assert kinds(AlertWatch(Supervisor(home), history)) == [AlertKind.LEAK]


def test_alerts_are_sent_though_the_history_cannot_be_written(home: Home) -> None:
    sent: list[RunAlert] = []
    reports: list[str] = []
    supervisor = Supervisor(home, is_read_only=True)
    with (
        a_live_run(home) as run,
        AlertService(supervisor, AlertOptions(), reports.append, sent.append) as service,
    ):
        service.poll()
        (lock,) = (home.path / "alerts").glob("*.lock")
        lock.with_suffix(".draft").mkdir()
        run.put(EventKind.OOM)
        for _ in range(2):
            service.poll()
        assert [alert.kind for alert in sent] == [AlertKind.OOM]
        assert len(reports) == 1
        lock.with_suffix(".draft").rmdir()


def test_a_deleted_run_and_a_damaged_one_do_not_disturb_others(home: Home) -> None:
    with (
        a_live_run(home, "deleted") as deleted,
        a_live_run(home, "damaged") as damaged,
        a_live_run(home, "whole") as whole,
    ):
        watch = a_watch(home)
        deleted.kill()
        home.remove(deleted.folder)
        damaged.folder.log.write_bytes(b"x" * 5_000)
        whole.put(EventKind.LEAK)
        assert kinds(watch) == [AlertKind.LEAK]


def test_a_simulated_run_is_no_news(home: Home) -> None:
    watch = a_watch(home)
    write("oom", home, steps=50)
    assert watch.poll() == []


def test_a_copied_folder_is_no_news(home: Home) -> None:
    with a_live_run(home) as run:
        watch = a_watch(home)
        shutil.copytree(run.folder.path, home.runs_path / "copy", copy_function=shutil.copyfile)
        assert watch.poll() == []


def test_the_name_of_a_run_is_one_printable_line(home: Home) -> None:
    with LiveRun(home, "-x {kind} <!channel>") as run:
        watch = a_watch(home)
        run.put(EventKind.OOM, "first\nsecond\x1b[31m")
        (alert,) = watch.poll()
    assert alert.text == "Out of memory, -x {kind} <!channel>: first\\nsecond\\x1b[31m"


def test_a_repeated_alert_is_left_out_and_counted() -> None:
    limit = RateLimit()
    passed = [limit.passed(an_alert(number=number), now_s=number) for number in range(4)]
    assert [alert is not None for alert in passed] == [True, False, False, False]
    later = limit.passed(an_alert(number=9), now_s=REPEAT_S)
    assert later is not None
    assert later.text.endswith("alert 9. (3 more left out)")


def test_many_runs_at_once_are_limited() -> None:
    limit = RateLimit()
    alerts = [an_alert(AlertKind.FINISHED, run=f"run-{number}") for number in range(MOST + 5)]
    assert len([alert for alert in alerts if limit.passed(alert, 0.0)]) == MOST
    later = limit.passed(an_alert(run="another"), WINDOW_S)
    assert later is not None
    assert later.text.endswith("(5 more left out)")
