"""`stepscope dashboard`: the server's command line and environment, and what it refuses."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest

from harness.cli import dashboard, main
from harness.serving import Serving
from harness.store.home import Home
from harness.store.token import read_token
from tests.supervision import until

ROOT = Path(__file__).parents[2]


def _value(command: list[str], flag: str) -> list[str]:
    return [command[at + 1] for at, word in enumerate(command) if word == flag]


def test_every_option_that_matters_is_a_flag() -> None:
    command = dashboard.server_command(dashboard.dashboard_folder(), "127.0.0.1", 8600)
    assert command[1:3] == ["-P", str(ROOT / "dashboard" / "__main__.py")]
    assert _value(command, "--server.address") == ["127.0.0.1"]
    assert _value(command, "--server.port") == ["8600"]
    assert _value(command, "--server.headless") == ["true"]
    assert _value(command, "--server.allowedHosts") == ["localhost", "127.0.0.1"]
    assert _value(command, "--browser.gatherUsageStats") == ["false"]
    assert _value(command, "--client.toolbarMode") == ["minimal"]
    assert _value(command, "--runner.postScriptGC") == ["false"]


def test_a_shared_server_leaves_the_host_to_the_guard() -> None:
    command = dashboard.server_command(dashboard.dashboard_folder(), "0.0.0.0", 8600)
    assert _value(command, "--server.address") == ["0.0.0.0"]
    assert _value(command, "--server.allowedHosts") == ["*"]


@pytest.mark.parametrize(
    ("address", "url"),
    [("192.168.1.5", "http://192.168.1.5:8600"), ("::1", "http://[::1]:8600"), ("box", "http://box:8600")],
)
def test_the_address_to_type(address: str, url: str) -> None:
    assert dashboard.shared_url(address, 8600) == url
    assert "0.0.0.0" not in dashboard.shared_url("0.0.0.0", 8600)


@pytest.mark.parametrize(
    "serving", [Serving(), Serving("0.0.0.0", True, "http://localhost:1"), Serving("::1")]
)
def test_how_it_is_served_survives_the_environment(serving: Serving) -> None:
    assert Serving.from_environ(serving.to_environ({"OTHER": "1"})) == serving
    assert serving.to_environ({"OTHER": "1"})["OTHER"] == "1"


def test_an_earlier_share_is_not_taken_over_but_read_only_is() -> None:
    environ = Serving("0.0.0.0", True, "http://localhost:1").to_environ({})
    assert Serving.from_environ(Serving().to_environ(environ)) == Serving(None, True, None)


def test_a_port_that_is_taken_is_one_sentence_with_a_free_one(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["dashboard", "--port", str(port)]) == 1
    message = capsys.readouterr().err
    assert message.startswith(f"stepscope: Port {port} is taken; ")
    assert message.count("\n") == 1


class BecameServerError(Exception):
    """The process would be the server now."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """Command line and environment of the servers that this process would have become."""
    servers: list[tuple[list[str], dict[str, str]]] = []

    def become(_path: str, command: list[str], environ: dict[str, str]) -> NoReturn:
        servers.append((command, environ))
        raise BecameServerError

    monkeypatch.setattr(os, "execve", become)
    return servers


def test_without_a_port_the_next_free_one_is_taken_and_said(
    server: list[tuple[list[str], dict[str, str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as other:
        # Where somebody else has it already, so much the better.
        with suppress(OSError):
            other.bind(("127.0.0.1", 8501))
            other.listen()
        with pytest.raises(BecameServerError):
            main(["dashboard", "--no-browser"])
        (port,) = _value(server[0][0], "--server.port")
        assert int(port) > 8501
        message = capsys.readouterr()
        assert f"Port 8501 is taken; serving on {port}." in message.err
        assert f"http://localhost:{port}" in message.out


def test_the_server_gets_its_options(
    server: list[tuple[list[str], dict[str, str]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--home", str(tmp_path / "home"), "--share", "127.0.0.2", "--read-only"]
    screen = {"DISPLAY": ":0", "PATH": os.environ["PATH"]}
    with pytest.raises(BecameServerError):
        main(["dashboard", *words], screen)
    ((command, environ),) = server
    token = str(read_token(Home(tmp_path / "home")))
    (port,) = _value(command, "--server.port")
    url = f"http://127.0.0.2:{port}"
    assert Serving.from_environ(environ) == Serving("127.0.0.2", True, url)
    assert environ["STEPSCOPE_HOME"] == str(tmp_path / "home")
    assert f"{url}/?token={token}" in capsys.readouterr().out
    # Other users can read a command line.
    assert token not in " ".join(command)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--port", "0"], "--port cannot be 0"),
        (["--port", "70000"], "--port cannot be 70000"),
        (["--share", "192.0.2.1"], "not this machine's"),
        (["--share", "no such name"], "no such address"),
    ],
)
def test_what_cannot_be_served_is_said(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dashboard", *words]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.slow
def test_an_interrupt_while_streamlit_is_imported_ends_the_server_without_a_traceback() -> None:
    server = subprocess.Popen(
        [sys.executable, "-P", str(ROOT / "dashboard" / "__main__.py"), "--help"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    until(lambda: Path(f"/proc/{server.pid}/maps").read_text(), lambda maps: "site-packages" in maps)
    server.send_signal(signal.SIGINT)
    _, complaint = server.communicate(timeout=60)
    assert (server.returncode, complaint) == (130, "")
