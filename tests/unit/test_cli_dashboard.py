"""`stepscope dashboard`: the server's command line and environment, and what it refuses."""

import socket
from pathlib import Path

import pytest

from harness.cli import dashboard, main
from harness.serving import Serving

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
    said = capsys.readouterr().err
    assert said.startswith(f"stepscope: Port {port} is taken; ")
    assert said.count("\n") == 1


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
