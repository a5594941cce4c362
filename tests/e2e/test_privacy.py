"""The dashboard is this machine's alone: no foreign host name or page gets in, nothing is asked outside."""

import base64
import http.client
import os

import pytest

from harness.demo import write
from tests.e2e.serving import Dashboard
from tests.e2e.tab import Tab

pytestmark = pytest.mark.browser


def _status(dashboard: Dashboard, path: str, **headers: str) -> int:
    """The status with which the server answers a request with these headers."""
    connection = http.client.HTTPConnection("127.0.0.1", dashboard.port, timeout=10)
    try:
        connection.request(
            "GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )
        return connection.getresponse().status
    finally:
        connection.close()


def _upgrade(dashboard: Dashboard, origin: str, host: str) -> int:
    """The status with which the server answers a page of `origin` that opens the websocket of `host`."""
    headers = {
        "Host": host,
        "Origin": origin,
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
    }
    connection = http.client.HTTPConnection("127.0.0.1", dashboard.port, timeout=10)
    try:
        connection.request("GET", "/_stcore/stream", headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_foreign_host_name_is_refused(dashboard: Dashboard) -> None:
    """All that is said of runs travels by the websocket; a name rebound to this machine does not open it."""
    for host in ("evil.example", f"evil.example:{dashboard.port}", "localhost.evil.example"):
        assert _upgrade(dashboard, f"http://{host}", host) == 403
    assert _upgrade(dashboard, f"http://127.0.0.1:{dashboard.port}", f"127.0.0.1:{dashboard.port}") == 101


def test_a_foreign_page_cannot_open_the_websocket(dashboard: Dashboard) -> None:
    here = f"localhost:{dashboard.port}"
    assert _upgrade(dashboard, f"http://{here}", here) == 101
    for origin in ("http://evil.example", f"http://evil.example:{dashboard.port}", "null"):
        assert _upgrade(dashboard, origin, here) == 403


def test_the_server_listens_on_this_machine_only(dashboard: Dashboard) -> None:
    assert dashboard.listening_on() == {"127.0.0.1"}


def test_no_page_asks_anything_of_another_machine(tab: Tab, dashboard: Dashboard) -> None:
    """The tab itself fails on closing when one did."""
    folder = write("amp", dashboard.home, steps=500)
    tab.watch(folder.run_id)
    for path, heading in (
        ("runs", "Runs"),
        ("compare", "Compare runs"),
        ("new", "New run"),
        ("system", "System"),
    ):
        tab.open(path)
        tab.page.get_by_role("heading", name=heading, exact=True).wait_for()
    tab.page.get_by_text("Checks").wait_for()
    assert tab.asked > 20
