"""The guard as ASGI middleware: checks every HTTP request and every websocket ahead of Streamlit."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from html import escape
from typing import Any, NamedTuple, assert_never

from dashboard.guard.peer import is_loopback, peer_uid
from dashboard.guard.policy import (
    TOKEN_PARAMETER,
    AccessRequest,
    Allowed,
    GuardedServer,
    Refused,
    TokenAccepted,
    decide,
)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

# A token of 256 bits cannot be guessed; the delay keeps a script from trying at network speed.
GUESS_DELAY_S = 0.5
# At most this many delayed responses; further guesses are rejected at once, so memory stays bounded.
MOST_DELAYED = 32
# A proxy that adds one of these forwards for another client. From loopback, uvicorn also takes the client's
# address from them: with X-Forwarded-For a client could pose as a connection of the owner.
_FORWARDING = frozenset(
    {b"forwarded", b"via", b"x-real-ip", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"}
)
_PROTECTION: Headers = [
    (b"content-security-policy", b"frame-ancestors 'none'"),
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
# Headers that must occur once: ours, the stricter one, replaces Streamlit's. Content policies are combined.
_REPLACED = frozenset(name for name, _ in _PROTECTION[1:])

# The guard's own responses are not cached.
_OWN: Headers = [(b"cache-control", b"no-store"), *_PROTECTION]


class Answer(NamedTuple):
    """A response of the guard itself."""

    status: int
    headers: Headers
    body: bytes


class AccessGuard:
    """Wraps an ASGI application of `server`. `identify` returns the uid of a connection."""

    def __init__(
        self,
        app: App,
        server: GuardedServer,
        identify: Callable[..., int | None] = peer_uid,
        guess_delay_s: float = GUESS_DELAY_S,
        most_delayed: int = MOST_DELAYED,
    ) -> None:
        """Store the parameters. The response to a wrong token is delayed, at most `most_delayed` at once."""
        self._app = app
        self._server = server
        self._identify = identify
        self._guess_delay_s = guess_delay_s
        self._most_delayed = most_delayed
        self._delayed = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass on allowed requests and respond to the others."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        verdict = decide(self._server, request_of(scope, self._identify))
        if isinstance(verdict, Allowed):
            await self._app(scope, receive, _protected(send))
            return
        if isinstance(verdict, Refused) and verdict.is_guess:
            verdict = await self._delay(verdict)
        answer = _answer(verdict)
        if scope["type"] == "http":
            await _send_http(answer, scope["method"], send)
        else:
            await _send_websocket(answer, scope, receive, send)

    async def _delay(self, refusal: Refused) -> Refused:
        if self._delayed >= self._most_delayed:
            return Refused(429, "Too many wrong tokens at once; try again in a moment.")
        self._delayed += 1
        try:
            await asyncio.sleep(self._guess_delay_s)
        finally:
            self._delayed -= 1
        return refusal


def request_of(scope: Message, identify: Callable[..., int | None]) -> AccessRequest:
    """Extract the data for the rules from an ASGI scope."""
    headers: Headers = scope["headers"]
    client, server = scope.get("client"), scope.get("server")
    is_passed_on = any(name in _FORWARDING for name, _ in headers)
    uid = None
    if client is not None and server is not None and not is_passed_on and is_loopback(client[0]):
        uid = identify((client[0], client[1]), (server[0], server[1]))
    return AccessRequest(
        is_websocket=scope["type"] == "websocket",
        method=scope.get("method", "GET"),
        is_https=scope["scheme"] in ("https", "wss"),
        path=scope["path"],
        query=scope["query_string"].decode("latin-1"),
        port=0 if server is None or server[1] is None else server[1],
        hosts=_values(headers, b"host"),
        origins=_values(headers, b"origin"),
        fetch_site=next(iter(_values(headers, b"sec-fetch-site")), None),
        is_navigation=_values(headers, b"sec-fetch-mode") == ["navigate"]
        and _values(headers, b"sec-fetch-dest") == ["document"],
        is_browser=any("text/html" in value for value in _values(headers, b"accept")),
        cookies=_values(headers, b"cookie"),
        authorizations=_values(headers, b"authorization"),
        peer_uid=uid,
    )


def announcement(server: GuardedServer, port: int) -> str | None:
    """Return the text that the server prints in its terminal at startup, or None."""
    if server.problem is not None:
        return server.problem
    if server.uid is not None:
        return None
    unknown = "Local users cannot be identified on this system"
    if server.token is None:
        return f"{unknown}, and no token could be created, so nobody has access. See `stepscope doctor`."
    return f"{unknown}, so a token is needed: open http://localhost:{port}/?{TOKEN_PARAMETER}={server.token}"


def announce(server: GuardedServer, port: int) -> None:
    """Print the announcement."""
    text = announcement(server, port)
    if text is not None:
        print(f"stepscope: {text}", file=sys.stderr, flush=True)


def _values(headers: Headers, key: bytes) -> list[str]:
    return [value.decode("latin-1").strip() for name, value in headers if name == key]


def _protected(send: Send) -> Send:
    """Wrap `send` to add the protective headers to every response."""

    async def with_headers(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            others = [pair for pair in message.get("headers", ()) if pair[0].lower() not in _REPLACED]
            message = {**message, "headers": [*others, *_PROTECTION]}
        await send(message)

    return with_headers


def _answer(verdict: Refused | TokenAccepted) -> Answer:
    plain = [(b"content-type", b"text/plain; charset=utf-8"), *_OWN]
    page = [(b"content-type", b"text/html; charset=utf-8"), *_OWN]
    match verdict:
        case Refused(status, sentence):
            return Answer(status, plain, f"{sentence}\n".encode())
        case TokenAccepted(location, cookie, is_by_page):
            header = (b"set-cookie", cookie.encode("latin-1"))
            if not is_by_page:
                return Answer(303, [*plain, header, (b"location", location.encode("latin-1"))], b"")
            body = f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(location)}">'
            return Answer(200, [*page, header], body.encode())
        case _:
            assert_never(verdict)


async def _send_http(answer: Answer, method: str, send: Send) -> None:
    length = (b"content-length", str(len(answer.body)).encode())
    await send({"type": "http.response.start", "status": answer.status, "headers": [*answer.headers, length]})
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else answer.body})


async def _send_websocket(answer: Answer, scope: Message, receive: Receive, send: Send) -> None:
    """Refuse the upgrade, with the response if the server supports one."""
    await receive()
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008})
        return
    await send({"type": "websocket.http.response.start", "status": answer.status, "headers": answer.headers})
    await send({"type": "websocket.http.response.body", "body": answer.body})
