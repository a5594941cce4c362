"""Test who gets in: other users of this machine, foreign pages and names, tunnels; servers started
elsewhere."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.cookies import SimpleCookie
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from prometheus_client.parser import text_string_to_metric_families

from harness.store.token import read_token
from tests.e2e.serving import ROOT, Dashboard
from tests.e2e.tab import Tab
from tests.guard_factories import NOBODY, fetch, needs_root, relay, upgrade
from tests.supervision import until

pytestmark = pytest.mark.browser

# Every kind of address that Streamlit serves, its own and ours.
ADDRESSES = [
    "/",
    "/memory",
    "/index.html",
    "/static/index.html",
    "/app/static/wire.mjs",
    "/_stcore/health",
    "/_stcore/host-config",
    "/_stcore/metrics",
    "/metrics",
    "/download/capture/run/file",
    "/download/tables",
    "/download/report",
    "/_stcore/script-health-check",
    "/_stcore/upload_file/a/b",
    "/_stcore/bidi-components/x/y.js",
    "/media/abc.csv",
    "/component/x/index.html",
    "/auth/login",
    "/no/such/address",
]


@pytest.fixture(scope="module")
def others_port(dashboard: Dashboard) -> Iterator[int]:
    """A port behind which everything comes from another user of this machine."""
    with relay(dashboard.port, NOBODY) as port:
        yield port


@needs_root
def test_another_local_user_gets_nothing(dashboard: Dashboard, others_port: int) -> None:
    for address in ADDRESSES:
        for method in ("GET", "HEAD", "PUT", "DELETE"):
            own = {"Host": f"localhost:{dashboard.port}", "Origin": f"http://localhost:{dashboard.port}"}
            reply = fetch(others_port, address, method, **own)
            assert (reply.status, method, address) == (403, method, address)
    assert "`stepscope dashboard --share`" in fetch(others_port, Host="localhost").text
    host = f"localhost:{dashboard.port}"
    assert upgrade(others_port, Host=host, Origin=f"http://{host}").status == 403
    assert upgrade(dashboard.port, Host=host, Origin=f"http://{host}").status == 101


@needs_root
def test_another_user_cannot_pass_a_connection_of_the_owners_off_as_theirs(
    dashboard: Dashboard, others_port: int
) -> None:
    """uvicorn takes the client's address and port from X-Forwarded-For, of a request over loopback."""
    with socket.create_connection(("127.0.0.1", dashboard.port)) as owners:
        claimed = f"127.0.0.1:{owners.getsockname()[1]}"
        assert fetch(others_port, Host="localhost", X_Forwarded_For=claimed).status == 403


def test_foreign_names_and_pages_are_refused_to_the_owner_too(dashboard: Dashboard) -> None:
    port = dashboard.port
    assert fetch(port).status == 200
    for host in ("evil.example", f"evil.example:{port}", "192.168.1.5", f"localhost.evil.example:{port}"):
        assert fetch(port, Host=host).status == 403
        assert upgrade(port, Host=host, Origin=f"http://{host}").status == 403
    here = f"localhost:{port}"
    assert upgrade(port, Host=here, Origin=f"http://{here}").status == 101
    for origin in ("http://localhost:9999", f"http://127.0.0.1:{port}", "http://evil.example", "null"):
        assert upgrade(port, Host=here, Origin=origin).status == 403
        assert fetch(port, "/_stcore/upload_file/a/b", "PUT", Host=here, Origin=origin).status == 403
    assert upgrade(port, Host=here).status == 403


@pytest.fixture
def steady(dashboard: Dashboard) -> Iterator[None]:
    """A simulated run of fifty steps, for one test."""
    dashboard.shell("demo", "steady", "--steps", "50")
    yield
    dashboard.empty()


@pytest.mark.usefixtures("steady")
def test_the_dashboard_is_a_target_of_prometheus(dashboard: Dashboard) -> None:
    with dashboard.output.open(encoding="utf-8") as output:
        output.seek(0, os.SEEK_END)
        reply = fetch(dashboard.port, "/metrics")
        assert output.read() == ""
    assert reply.status == 200
    families = {family.name: family for family in text_string_to_metric_families(reply.text)}
    assert [s.value for s in families["stepscope_steps"].samples] == [50]


def test_the_server_listens_on_this_machine_only(dashboard: Dashboard) -> None:
    assert dashboard.listening_on() == {"127.0.0.1"}


def test_no_page_can_frame_what_is_served(dashboard: Dashboard) -> None:
    for address in ("/", "/app/static/wire.mjs", "/_stcore/health", "/no/such/address"):
        headers = fetch(dashboard.port, address).headers
        assert headers["x-frame-options"] == "DENY"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


@needs_root
def test_the_token_lets_another_user_in(dashboard: Dashboard, others_port: int) -> None:
    token = read_token(dashboard.home)
    host = f"localhost:{others_port}"
    assert fetch(others_port, "/?token=wrong", Host=host).status == 403
    moved = fetch(others_port, f"/runs?token={token}&run=x", Host=host)
    assert (moved.status, moved.headers["location"]) == (303, "/runs?run=x")
    (cookie,) = SimpleCookie(moved.headers["set-cookie"]).values()
    assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "Strict", "/")
    assert str(token) not in moved.headers["set-cookie"]
    pair = f"{cookie.key}={cookie.value}"
    assert fetch(others_port, Host=host, Cookie=pair).status == 200
    assert upgrade(others_port, Host=host, Origin=f"http://{host}", Cookie=pair).status == 101
    with relay(dashboard.port, NOBODY - 1) as third_port:
        assert fetch(third_port, Host=host, Cookie=pair).status == 403


@needs_root
def test_a_browser_enters_with_the_token_and_stays(
    browser: Browser, dashboard: Dashboard, others_port: int
) -> None:
    with browser.new_context() as window:
        page = window.new_page()
        page.goto(f"http://localhost:{others_port}/runs")
        expect(page.get_by_text("This dashboard cannot verify that it is yours.")).to_be_visible()
        page.goto(f"http://localhost:{others_port}/runs?token={read_token(dashboard.home)}")
        expect(page.get_by_role("heading", name="No run yet")).to_be_visible()
        assert "token" not in page.url
        window.clear_cookies()
        link = f'<a href="http://localhost:{others_port}/runs?token={read_token(dashboard.home)}">runs</a>'
        window.route(
            "http://elsewhere.example/", lambda route: route.fulfill(body=link, content_type="text/html")
        )
        page.goto("http://elsewhere.example/")
        page.get_by_role("link", name="runs").click()
        expect(page.get_by_role("heading", name="No run yet")).to_be_visible()
        assert "token" not in page.url
        page.reload()
        expect(page.get_by_role("heading", name="No run yet")).to_be_visible()


@needs_root
def test_the_owners_tunnel_needs_no_token(browser: Browser, dashboard: Dashboard) -> None:
    """Like `ssh -L`: the far end is a process of the owner's own, the near end has any port."""
    with relay(dashboard.port, 0) as port, browser.new_context() as window:
        tab = Tab(window, f"http://localhost:{port}")
        tab.open("runs")
        expect(tab.page.get_by_role("heading", name="No run yet")).to_be_visible()
        tab.close()


@pytest.mark.long
def test_started_in_a_foreign_folder_it_is_as_private(browser: Browser, tmp_path: Path) -> None:
    """The folder's own configuration would open it to everybody."""
    folder = tmp_path / "elsewhere"
    (folder / ".streamlit").mkdir(parents=True)
    (folder / ".streamlit" / "config.toml").write_text(
        '[server]\naddress = "0.0.0.0"\nenableStaticServing = false\n[browser]\ngatherUsageStats = true\n',
        encoding="utf-8",
    )

    def command(port: int) -> list[str]:
        app = str(ROOT / "dashboard" / "app.py")
        return [sys.executable, "-m", "streamlit", "run", app, "--server.port", str(port)]

    with Dashboard(tmp_path, command, folder) as dashboard, browser.new_context() as window:
        assert dashboard.listening_on() == {"127.0.0.1"}
        assert fetch(dashboard.port, "/app/static/wire.mjs").headers["content-type"].endswith("javascript")
        tab = Tab(window, dashboard.url)
        tab.open("runs")
        expect(tab.page.get_by_role("heading", name="No run yet")).to_be_visible()
        tab.close()


@pytest.mark.parametrize(
    ("flag", "value", "named"),
    [
        ("--server.address", "0.0.0.0", "listen on 0.0.0.0"),
        pytest.param("--browser.gatherUsageStats", "true", "usage statistics", marks=pytest.mark.long),
    ],
)
def test_under_unsafe_options_one_sentence_is_all_there_is(
    flag: str, value: str, named: str, tmp_path: Path
) -> None:
    def command(port: int) -> list[str]:
        app = str(ROOT / "dashboard" / "app.py")
        words = [app, "--server.port", str(port), "--logger.hideWelcomeMessage", "true", flag, value]
        return [sys.executable, "-m", "streamlit", "run", *words]

    with Dashboard(tmp_path, command, Path("/"), answers_with=503) as dashboard:
        host = f"localhost:{dashboard.port}"
        for address in ADDRESSES:
            reply = fetch(dashboard.port, address, Host=host)
            assert (reply.status, reply.headers["content-type"]) == (503, "text/plain; charset=utf-8")
            assert named in reply.text
            assert "`stepscope dashboard`" in reply.text
        assert upgrade(dashboard.port, Host=host, Origin=f"http://{host}").status == 503
        assert named in dashboard.output.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def wheel_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and nothing of this repository; what it depends on is borrowed."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    tracked = subprocess.run(
        [
            "git",
            "ls-files",
            "-co",
            "--exclude-standard",
            "harness",
            "dashboard",
            "stepscope",
            "pyproject.toml",
            "README.md",
        ],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    for name in tracked:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source)],
        check=True,
    )
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True)
    python = str(folder / "env" / "bin" / "python")
    subprocess.run([*pip, "--python", python, "install", "--no-deps", "--no-compile", str(wheel)], check=True)
    (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
    borrowed = next(path for path in sys.path if path.endswith("site-packages"))
    # A path alone: the .pth files there, which lead back to this repository, are not read.
    (packages / "borrowed.pth").write_text(borrowed + "\n", encoding="utf-8")
    return folder / "env"


def _loopback() -> str:
    """IPv6's loopback, where there is one."""
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return "127.0.0.1"
    return "::1"


@pytest.mark.long
def test_the_wheel_serves_from_any_folder(wheel_environment: Path, browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "harness.py").write_text("raise SystemExit('imported from the folder')", encoding="utf-8")
    (tmp_path / "dashboard").mkdir()
    opener, opened = tmp_path / "browser", tmp_path / "opened"
    opener.write_text(f'#!/bin/sh\necho "$1" > {opened}\n', encoding="utf-8")
    opener.chmod(0o755)
    address = _loopback()

    def command(port: int) -> list[str]:
        stepscope = str(wheel_environment / "bin" / "stepscope")
        words = ["--port", str(port), "--share", address, "--read-only"]
        return [stepscope, "dashboard", "--home", str(tmp_path / "home"), *words]

    screen = {"DISPLAY": ":0", "BROWSER": f"{opener} %s"}
    host = f"[{address}]" if ":" in address else address
    server = Dashboard(tmp_path, command, tmp_path, screen, host=host)
    with server as dashboard, browser.new_context() as window:
        port, token = dashboard.port, str(read_token(dashboard.home))
        assert dashboard.listening_on() == {address}
        message = until(lambda: dashboard.output.read_text(encoding="utf-8"), lambda text: token in text)
        assert f"{dashboard.url}/?token={token}" in message
        words = Path(f"/proc/{dashboard.pid}/cmdline").read_text(encoding="utf-8").split("\0")
        assert words[2].startswith(str(wheel_environment))
        assert token not in " ".join(words)
        until(opened.exists, bool)
        assert until(lambda: opened.read_text(encoding="utf-8"), bool) == f"{dashboard.url}\n"
        page = window.new_page()
        page.goto(f"{dashboard.url}/runs")
        expect(page.get_by_text("This dashboard is read-only")).to_be_visible()
        if os.geteuid() == 0:
            with relay(port, NOBODY, address) as others_port:
                assert fetch(others_port).status == 403
                assert fetch(others_port, f"/?token={token}").status == 303
        os.kill(dashboard.pid, signal.SIGINT)
        assert dashboard.wait() == 130
        assert "Traceback" not in dashboard.output.read_text(encoding="utf-8")


FOREIGN_PAGE = """async ([target]) => {
    const socket = new WebSocket(`ws://${target}/_stcore/stream`, ["streamlit"]);
    const opened = await new Promise(done => {
        socket.onopen = () => done(true); socket.onerror = () => done(false);
    });
    const script = document.createElement("script");
    script.src = `http://${target}/app/static/wire.mjs`;
    const loaded = await new Promise(done => {
        script.onload = () => done(true); script.onerror = () => done(false); document.head.append(script);
    });
    const sent = await fetch(`http://${target}/_stcore/upload_file/a/b`, { method: "PUT", body: "x" })
        .then(() => true, () => false);
    return { opened, loaded, sent };
}"""


def test_a_page_of_another_local_server_reaches_nothing(browser: Browser, dashboard: Dashboard) -> None:
    """The browser is the owner's own, and so is each connection that it makes for the page."""
    quiet = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    with ThreadingHTTPServer(("127.0.0.1", 0), quiet) as other, browser.new_context() as window:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        page = window.new_page()
        page.goto(f"http://localhost:{other.server_port}/no-such-page")
        reached = page.evaluate(FOREIGN_PAGE, [f"localhost:{dashboard.port}"])
        assert reached == {"opened": False, "loaded": False, "sent": False}
        page.set_content(f'<iframe src="{dashboard.url}"></iframe>')
        frame = until(lambda: page.frames[-1], lambda frame: frame is not page.main_frame)
        until(lambda: frame.url, lambda url: url.startswith("chrome-error:"))
        other.shutdown()
        thread.join()
