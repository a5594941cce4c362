"""The guard around an application that says when it was reached."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dashboard.guard.middleware import AccessGuard, announcement
from tests.guard_factories import OWNER, PORT, TOKEN, server

HERE = f"localhost:{PORT}".encode()


class Exchange:
    """One connection to a guard, from the owner's own process."""

    def __init__(self, guard: AccessGuard | None = None) -> None:
        self.reached = 0
        self.identified: list[tuple[Any, ...]] = []
        self.sent: list[dict[str, Any]] = []
        self.guard = guard or AccessGuard(self.app, server(), self.identify)

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        self.reached += 1
        headers = [(b"X-Frame-Options", b"SAMEORIGIN"), (b"content-security-policy", b"default-src 'self'")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"page"})

    def identify(self, *ends: Any) -> int:
        self.identified.append(ends)
        return OWNER

    async def say(self, message: Any) -> None:
        self.sent.append(dict(message))

    async def hear(self) -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def run(self, kind: str = "http", *headers: tuple[bytes, bytes], **values: Any) -> None:
        scope = {
            "type": kind,
            "method": "GET",
            "scheme": "http",
            "path": "/",
            "query_string": b"",
            "headers": [(b"host", HERE), *headers],
            "client": ("127.0.0.1", 50_000),
            "server": ("127.0.0.1", PORT),
            **values,
        }
        await self.guard(scope, self.hear, self.say)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    def header(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.sent[0]["headers"] if key.lower() == name]


def _run(work: Coroutine[Any, Any, None]) -> None:
    """In a thread of its own: the browser tests leave a loop running in the first."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work).result()


def _exchange(kind: str = "http", *headers: tuple[bytes, bytes], **values: Any) -> Exchange:
    exchange = Exchange()
    _run(exchange.run(kind, *headers, **values))
    return exchange


def test_what_passes_cannot_be_framed() -> None:
    passed = _exchange()
    assert (passed.reached, passed.status) == (1, 200)
    assert passed.header(b"x-frame-options") == [b"DENY"]
    assert b"frame-ancestors 'none'" in passed.header(b"content-security-policy")
    assert b"default-src 'self'" in passed.header(b"content-security-policy")
    assert passed.header(b"x-content-type-options") == [b"nosniff"]
    assert passed.header(b"referrer-policy") == [b"no-referrer"]


def test_a_refusal_reaches_nothing_and_cannot_be_framed_either() -> None:
    refused = _exchange(headers=[(b"host", b"evil.example")])
    assert (refused.reached, refused.status) == (0, 403)
    assert refused.header(b"x-frame-options") == [b"DENY"]
    assert refused.sent[1]["body"].endswith(b".\n")


@pytest.mark.parametrize(
    "name",
    [b"forwarded", b"via", b"x-real-ip", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"],
)
def test_what_a_proxy_passed_on_is_not_the_owners(name: bytes) -> None:
    """uvicorn believes X-Forwarded-For of a loopback client, its port included."""
    passed_on = _exchange("http", (name, b"127.0.0.1:50000"))
    assert (passed_on.reached, passed_on.identified, passed_on.status) == (0, [], 403)


def test_only_connections_over_loopback_are_looked_up() -> None:
    assert _exchange(client=("192.0.2.7", 50_000)).identified == []
    assert _exchange(client=None).status == 403
    assert _exchange().identified == [(("127.0.0.1", 50_000), ("127.0.0.1", PORT))]


def test_head_has_no_body() -> None:
    assert _exchange(method="HEAD", headers=[]).sent[1]["body"] == b""


def test_a_websocket_is_refused_with_or_without_the_sentence() -> None:
    closed = _exchange("websocket")
    assert closed.sent == [{"type": "websocket.close", "code": 1008}]
    text = _exchange("websocket", extensions={"websocket.http.response": {}})
    assert (text.status, text.reached) == (403, 0)


def test_wrong_tokens_wait_and_more_than_a_few_are_turned_away() -> None:
    first = Exchange()
    first.guard = AccessGuard(first.app, server(), first.identify, guess_delay_s=0.05, most_delayed=2)
    others = [Exchange(first.guard) for _ in range(3)]

    async def guess() -> None:
        await asyncio.gather(*(one.run(query_string=b"token=wrong") for one in [first, *others]))
        await others[0].run(query_string=f"token={TOKEN}".encode())

    _run(guess())
    assert sorted(one.status for one in [first, *others]) == [403, 403, 429, 429]
    assert others[0].sent[-2]["status"] == 303


def test_if_users_cannot_be_identified_the_terminal_shows_the_token() -> None:
    assert f"http://localhost:{PORT}/?token={TOKEN}" in str(announcement(server(uid=None), PORT))
    assert "nobody has access" in str(announcement(server(uid=None, token=None), PORT))
    assert announcement(server(), PORT) is None
    assert announcement(server(problem="Wrong."), PORT) == "Wrong."
