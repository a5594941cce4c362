"""Requests at the dashboard's door, connections of other local users, and raw HTTP."""

import base64
import http.client
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from dashboard.guard.policy import AccessRequest, GuardedServer

OWNER, STRANGER = 1000, 1001
TOKEN = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFG"
PORT = 8501
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another local user")


def server(
    uid: int | None = OWNER,
    token: str | None = TOKEN,
    share: str | None = None,
    problem: str | None = None,
) -> GuardedServer:
    return GuardedServer(uid, token, share, problem)


def request(peer_uid: int | None = OWNER, **values: object) -> AccessRequest:
    """The owner's own browser, which opens the first page."""
    usual = AccessRequest(
        is_websocket=False,
        method="GET",
        is_https=False,
        path="/",
        query="",
        port=PORT,
        hosts=[f"localhost:{PORT}"],
        origins=[],
        fetch_site="none",
        is_navigation=True,
        is_browser=True,
        cookies=[],
        authorizations=[],
        peer_uid=peer_uid,
    )
    return usual._replace(**values)  # type: ignore[arg-type]  # the fields' own types


class Reply(NamedTuple):
    """An answer over HTTP."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode("utf-8", errors="replace")


def fetch(port: int, path: str = "/", method: str = "GET", host: str = "127.0.0.1", **headers: str) -> Reply:
    """One request from this process; `x_y="z"` is the header `x-y: z`."""
    connection = http.client.HTTPConnection(host, port, timeout=30)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=named)
        answer = connection.getresponse()
        reply_headers = {name.lower(): value for name, value in answer.getheaders()}
        return Reply(answer.status, reply_headers, b"" if answer.status == 101 else answer.read())
    finally:
        connection.close()


def upgrade(port: int, host: str = "127.0.0.1", **headers: str) -> Reply:
    """The answer to the opening of the page's websocket; without `origin` none is sent."""
    return fetch(
        port,
        "/_stcore/stream",
        host=host,
        Connection="Upgrade",
        Upgrade="websocket",
        Sec_WebSocket_Version="13",
        Sec_WebSocket_Key=base64.b64encode(os.urandom(16)).decode(),
        **headers,
    )


_RELAY = """
import socket, sys, threading
target = int(sys.argv[1])
server = socket.socket()
server.bind(("127.0.0.1", 0))
server.listen(64)
print(server.getsockname()[1], flush=True)
def pump(source, sink):
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass
    for end in (source, sink):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
while True:
    near, _ = server.accept()
    far = socket.create_connection((sys.argv[2], target))
    for pair in ((near, far), (far, near)):
        threading.Thread(target=pump, args=pair, daemon=True).start()
"""


@contextmanager
def relay(target: int, uid: int, to: str = "127.0.0.1") -> Iterator[int]:
    """A port that passes connections on to `target` from a process of the user `uid`: what comes out of it is
    that user's, as behind the sshd that carries their tunnel."""
    # The interpreter itself may lie where only its owner can reach.
    python = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
    process = subprocess.Popen(
        [python, "-I", "-c", _RELAY, str(target), to],
        user=uid,
        group=uid,
        extra_groups=[],
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, "the relay did not start"
        yield int(line)
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


class Connection(NamedTuple):
    """Both ends of an accepted connection."""

    client: tuple[str, int]
    server: tuple[str, int]
    accepted: socket.socket


@contextmanager
def connection(
    family: socket.AddressFamily, address: str, client: str | None = None
) -> Iterator[tuple[socket.socket, Connection]]:
    """A connection of this process to itself over `address`; `client` is another way to the same server."""
    with socket.socket(family) as server:
        if family == socket.AF_INET6:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        server.bind((address, 0))
        server.listen()
        near = socket.create_connection((client or address, server.getsockname()[1]))
        accepted = server.accept()[0]
        with near, accepted:
            yield near, Connection(accepted.getpeername()[:2], accepted.getsockname()[:2], accepted)
