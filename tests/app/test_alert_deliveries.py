"""The pages say that alerts do not arrive, since when, why, and what to do."""

from collections.abc import Iterator

import pytest

from dashboard.alert_service import alert_service
from dashboard.components import plain
from dashboard.data.alert_deliveries import alert_deliveries
from harness.alerts import AlertOptions
from harness.records.run import EventKind
from harness.serving import ALERTS_VARIABLE
from harness.store.home import Home
from harness.supervisor import Supervisor
from tests.alert_factories import a_live_run
from tests.app.conftest import Open, Write, texts
from tests.supervision import until

_COMMAND = "no-such-program-of-stepscope"


@pytest.fixture(autouse=True)
def _the_server_starts_anew() -> Iterator[None]:
    yield
    alert_deliveries.clear()


def test_a_server_without_destinations_shows_nothing(open_page: Open) -> None:
    assert "Alerts" not in texts(open_page("system"))


@pytest.mark.slow
def test_a_destination_that_fails_is_on_every_page(
    home: Home, demo: Write, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo("one-step")
    monkeypatch.setenv(ALERTS_VARIABLE, AlertOptions((f"{_COMMAND} {{text}}",)).to_json())
    with a_live_run(home) as run, alert_service(lambda: Supervisor(home, is_read_only=True)):
        until(lambda: list((home.path / "alerts").glob("*.json")), bool)
        assert "No alert so far." in texts(open_page("system"))
        assert _COMMAND not in texts(open_page("runs"))
        run.put(EventKind.OOM)
        until(lambda: alert_deliveries().read(), lambda report: report is not None and report.is_failing)
        until(lambda: texts(open_page("system")), lambda page: "1 alert not delivered." in page)
        text = texts(open_page("system"))
        assert ": it cannot be started: no such file or directory. 1 alert not delivered." in text
        assert plain("Check the command of --on-alert") in text
        sentence = plain(f"Alerts to the command {_COMMAND} fail")
        assert sentence in texts(open_page("runs"))
        assert sentence in texts(open_page())


def test_a_server_that_cannot_send_alerts_says_so(
    home: Home, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALERTS_VARIABLE, "{}")
    with alert_service(lambda: Supervisor(home, is_read_only=True)):
        assert "No alerts are sent: " in open_page("system").error[0].value
