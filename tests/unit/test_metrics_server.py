"""`stepscope metrics`: who may scrape, and what it refuses."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness.cli import main
from harness.cli.serving import become
from harness.demo.writing import write
from harness.errors import StepscopeError
from harness.store.home import Home
from harness.store.token import read_token
from tests.guard_factories import NOBODY, fetch, needs_root, relay
from tests.ports import free_port
from tests.supervision import until


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = Home(tmp_path_factory.mktemp("metrics"))
    write("steady", home, steps=50)
    return home


@pytest.mark.slow
def test_ctrl_c_while_the_server_is_imported_prints_nothing(home: Home) -> None:
    command = [sys.executable, "-m", "harness", "metrics", "--home", str(home.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        cmdline = Path(f"/proc/{server.pid}/cmdline")
        until(cmdline.read_text, lambda text: "metrics_server" in text)
        server.send_signal(signal.SIGINT)
        assert server.communicate(timeout=20) == ("", "")
    assert server.returncode == 130


@pytest.mark.slow
def test_ctrl_c_in_an_import_that_drops_exceptions_ends_the_server(home: Home, tmp_path: Path) -> None:
    """As C code may. uvicorn looks for this event loop after the address is printed."""
    (tmp_path / "uvloop.py").write_text(
        "import os, signal\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept BaseException:\n    pass\n"
        "raise ImportError\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "harness", "metrics", "--port", str(free_port()), "--home", str(home.path)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (130, "")
    assert ended.stdout.startswith("Metrics for Prometheus: ")


def test_ctrl_c_is_not_blocked_after_a_server_that_could_not_be_executed() -> None:
    with pytest.raises(StepscopeError, match="could not be started"):
        become(["/no/such/python"], {})
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.fixture(scope="module")
def port(home: Home) -> Iterator[int]:
    """The port of a server on a free one."""
    free = free_port()
    command = [sys.executable, "-m", "harness", "metrics", "--port", str(free), "--home", str(home.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == f"Metrics for Prometheus: http://127.0.0.1:{free}/metrics\n"
        yield free
        server.send_signal(signal.SIGINT)
        assert server.wait(10) == 130


def test_the_owner_scrapes_without_a_token(port: int) -> None:
    reply = fetch(port, "/metrics")
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/plain; version=")
    names = {family.name for family in text_string_to_metric_families(reply.text)}
    assert "stepscope_step_duration_seconds" in names


@pytest.mark.slow
@needs_root
def test_another_user_scrapes_with_the_token_alone(port: int, home: Home) -> None:
    with relay(port, NOBODY) as others_port:
        assert fetch(others_port, "/metrics", Host="localhost").status == 403
        wrong = fetch(others_port, "/metrics", Host="gpu.example", Authorization="Bearer wrong")
        assert wrong.status == 403
        right = fetch(others_port, "/metrics", Host="gpu.example", Authorization=f"Bearer {read_token(home)}")
        assert (right.status, right.text[:6]) == (200, "# HELP")


def test_nothing_else_is_served(port: int) -> None:
    assert fetch(port, "/").status == 404
    assert fetch(port, "/metrics", "POST", Origin=f"http://127.0.0.1:{port}").status == 405
    assert fetch(port, "/metrics", Host="evil.example").status == 403


@pytest.mark.slow
def test_a_port_in_use_is_named(port: int, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "harness", "metrics", "--port", str(port), "--home", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    reason = f"Port {port} of 127.0.0.1 cannot be used: address already in use; name another: --port N."
    assert ended.stderr == f"stepscope: {reason}\n"


@pytest.mark.slow
def test_a_port_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", "--port", "70000"]) == 2
    assert "--port cannot be 70000" in capsys.readouterr().err
