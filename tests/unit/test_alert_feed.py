"""The alerts for browsers: one watch for all tabs."""

import os

from dashboard.data.alert_feed import AlertFeed
from harness.alerts import AlertKind
from harness.records.run import EventKind
from harness.store.home import Home
from harness.supervisor import Supervisor
from tests.alert_factories import a_live_run


def test_tabs_share_one_poll_and_all_have_the_alert() -> None:
    home, clock_s = Home.locate(None, os.environ), [0.0]
    with a_live_run(home) as run:
        feed = AlertFeed(Supervisor(home, is_read_only=True), lambda: clock_s[0])
        assert feed.alerts() == []
        run.put(EventKind.OOM)
        assert feed.alerts() == []
        clock_s[0] += 3
        assert [alert.kind for alert in feed.alerts()] == [AlertKind.OOM]
        clock_s[0] += 3
        assert [alert.kind for alert in feed.alerts()] == [AlertKind.OOM]
