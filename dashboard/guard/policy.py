"""The access rules of the dashboard, as pure functions over one request.

The rules, in order: the options in effect are safe; the Host is a name of this server (against DNS
rebinding); a browser's request comes from the dashboard's own page (against cross-site requests); and a
client other than the owner's own processes on loopback has the token, or the cookie exchanged for it. A
program that sends the token itself (`Authorization: Bearer`), as Prometheus does, may use any name: no page
of another site can send it.
"""

import socket
from collections.abc import Sequence
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

from dashboard.guard import credentials

# Methods without side effects, which browsers send without an Origin.
_READING = frozenset({"GET", "HEAD"})
TOKEN_PARAMETER = "token"
_WILDCARDS = frozenset({"0.0.0.0", "::"})

HOW_TO_ENTER = (
    "Its owner has access without a password from their own processes on this machine, including an ssh "
    "tunnel; everyone else needs the address with the token that `stepscope dashboard --share` prints."
)


class GuardedServer(NamedTuple):
    """The guarded server."""

    # The owner's uid; None if clients cannot be identified by uid.
    uid: int | None
    token: str | None
    # The address shared on purpose.
    share: str | None
    # Why every request is refused; None if requests are served.
    problem: str | None


class AccessRequest(NamedTuple):
    """The data of a request or of a websocket handshake that the rules check."""

    is_websocket: bool
    method: str
    is_https: bool
    path: str
    query: str
    # The server's port.
    port: int
    # Every Host header.
    hosts: Sequence[str]
    # Every Origin header.
    origins: Sequence[str]
    # Sec-Fetch-Site, the origin of the request, which browsers send to loopback and over https.
    fetch_site: str | None
    # True if the browser reports top-level navigation, not a frame.
    is_navigation: bool
    # True for the request of a page, as sent for an address in the address bar.
    is_browser: bool
    cookies: Sequence[str]
    # Every Authorization header.
    authorizations: Sequence[str]
    # The uid of the client of a loopback connection; None if unknown or from another machine.
    peer_uid: int | None


class Allowed(NamedTuple):
    """The request goes on to Streamlit."""


class Refused(NamedTuple):
    """The request is rejected with a status and a sentence."""

    status: int
    sentence: str
    # True for a wrong token: the response is then delayed.
    is_guess: bool = False


class TokenAccepted(NamedTuple):
    """The token is correct: it is exchanged for a cookie and removed from the address."""

    location: str
    cookie: str
    # True if a page instead of a redirect has to lead on: after a link on another site, browsers do not send
    # the cookie to the target of a redirect.
    is_by_page: bool


Verdict = Allowed | Refused | TokenAccepted


def decide(server: GuardedServer, request: AccessRequest) -> Verdict:
    """Apply the rules to a request."""
    if server.problem is not None:
        return Refused(503, server.problem)
    bearer = _bearer_token(request)
    if bearer is not None:
        return Allowed() if credentials.matches(server.token, bearer) else _wrong_token()
    refusal = _foreign_host(server, request) or _foreign_page(request)
    if refusal is not None:
        return refusal
    token = _given_token(request)
    if token is not None:
        if server.token is None or not credentials.matches(server.token, token):
            return _wrong_token()
        return _accept_token(server.token, request)
    if (
        server.uid is not None
        and request.peer_uid == server.uid
        and _is_loopback_name(_name(request.hosts[0]))
    ):
        return Allowed()
    if credentials.has_cookie(server.token, request.peer_uid, request.port, request.cookies):
        return Allowed()
    return Refused(403, f"This dashboard cannot verify that it is yours. {HOW_TO_ENTER}")


def _wrong_token() -> Refused:
    return Refused(403, f"This is not the token of this dashboard. {HOW_TO_ENTER}", is_guess=True)


def _foreign_host(server: GuardedServer, request: AccessRequest) -> Refused | None:
    if len(request.hosts) == 1:
        name = _name(request.hosts[0])
        if name is not None and (_is_loopback_name(name) or _is_shared_name(name, server.share)):
            return None
    named = ", ".join(repr(host[:100]) for host in request.hosts) or "no host"
    return Refused(
        403,
        f"This dashboard is not called {named}. Open it as http://localhost:{request.port}, or by the "
        "address under which it is shared.",
    )


def _foreign_page(request: AccessRequest) -> Refused | None:
    """Refuse requests from other pages, as browsers report their origin; other pages may link to this one."""
    own = f"{'https' if request.is_https else 'http'}://{request.hosts[0]}".lower()
    if any(origin.lower() != own for origin in request.origins) or len(request.origins) > 1:
        return Refused(403, f"A page of {request.origins[0][:100]!r} cannot use this dashboard.")
    if not request.origins and (request.is_websocket or request.method not in _READING):
        return Refused(403, f"This request needs the header Origin, with the value {own}.")
    is_from_elsewhere = request.fetch_site in ("cross-site", "same-site")
    if is_from_elsewhere and not (request.is_navigation and request.method in _READING):
        return Refused(403, "Another page cannot use parts of this dashboard.")
    return None


def _bearer_token(request: AccessRequest) -> str | None:
    """Return the token in a header of a request that reads; None without one."""
    if request.is_websocket or request.method not in _READING:
        return None
    for value in request.authorizations:
        scheme, _, token = value.partition(" ")
        if scheme.lower() == "bearer":
            return token.strip()
    return None


def _given_token(request: AccessRequest) -> str | None:
    if request.is_websocket or request.method not in _READING:
        return None
    tokens = [value for name, value in parse_qsl(request.query, True) if name == TOKEN_PARAMETER]
    return tokens[0] if tokens else None


def _accept_token(token: str, request: AccessRequest) -> TokenAccepted:
    rest = urlencode([pair for pair in parse_qsl(request.query, True) if pair[0] != TOKEN_PARAMETER])
    # One slash alone: two, or a backslash, would lead to another server.
    path = "/" + quote(request.path.lstrip("/"), safe="/")
    cookie = credentials.set_cookie(token, request.peer_uid, request.port, is_https=request.is_https)
    is_by_page = request.is_browser and request.fetch_site not in ("none", "same-origin")
    return TokenAccepted(f"{path}?{rest}" if rest else path, cookie, is_by_page)


def _name(host: str) -> str | None:
    """Return the name in a Host header without its port; None if it is invalid."""
    name, colon, port = host.rpartition(":")
    if host.endswith("]") or not colon:
        name, port = host, "0"
    if not (port.isascii() and port.isdigit()):
        return None
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    elif ":" in name:
        return None
    return name.lower() or None


def _is_loopback_name(name: str | None) -> bool:
    if name is None:
        return False
    return name == "localhost" or (_is_address(name) and ip_address(name).is_loopback)


def _is_shared_name(name: str, share: str | None) -> bool:
    """Return whether `name` is valid for a dashboard shared under `share`. An address cannot be rebound, so
    one that listens on every interface accepts any address."""
    if share is None:
        return False
    if share in _WILDCARDS and _is_address(name):
        return True
    return name in (share.lower(), socket.gethostname().lower())


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
