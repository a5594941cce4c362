"""Who may do what at the dashboard's door, as pure functions over one request.

The rules, in their order: the options in effect are safe; the Host is a name of this server, so that no
foreign name was rebound to it; what a browser sends comes from the dashboard's own page; and whoever is not a
process of the owner's own over loopback shows the token, or the cookie that it was exchanged for.
"""

import socket
from collections.abc import Sequence
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

from dashboard.guard import credentials

# Methods that change nothing, and that a browser sends without an Origin.
_READING = frozenset({"GET", "HEAD"})
TOKEN_PARAMETER = "token"
_WILDCARDS = frozenset({"0.0.0.0", "::"})

HOW_TO_ENTER = (
    "Its owner enters without a password from their own processes on this machine, an ssh tunnel among them; "
    "anybody else needs the address with the token that `stepscope dashboard --share` prints."
)


class House(NamedTuple):
    """The server that is guarded."""

    uid: int | None
    """The owner's uid; None where connections cannot be distinguished by uid."""
    token: str | None
    share: str | None
    """The address that is shared on purpose."""
    problem: str | None
    """Why nothing at all is answered."""


class Request(NamedTuple):
    """What the rules need of a request or of the opening of a websocket."""

    is_websocket: bool
    method: str
    is_https: bool
    path: str
    query: str
    port: int
    """The server's own."""
    hosts: Sequence[str]
    """Every Host header."""
    origins: Sequence[str]
    """Every Origin header."""
    fetch_site: str | None
    """Sec-Fetch-Site, which browsers send to loopback and over https: where the request comes from."""
    is_navigation: bool
    """Whether the browser says that a person opens a page of its own, not a frame."""
    is_browser: bool
    """Whether the request is for a page, as browsers send it for an address in their address bar."""
    cookies: Sequence[str]
    peer_uid: int | None
    """Who is at the other end of a loopback connection; None: not known, or from elsewhere."""


class Allowed(NamedTuple):
    """The request goes on to Streamlit."""


class Refused(NamedTuple):
    """The request ends here, with a status and a sentence."""

    status: int
    sentence: str
    is_guess: bool = False
    """Whether a token was tried in vain: such answers are delayed."""


class Entered(NamedTuple):
    """The token was right: it is exchanged for a cookie, and leaves the address."""

    location: str
    cookie: str
    is_by_page: bool
    """Whether a page of ours has to lead on: after a link on a foreign page, browsers withhold the cookie
    from where a redirect leads."""


Verdict = Allowed | Refused | Entered


def decide(house: House, request: Request) -> Verdict:
    """What becomes of a request."""
    if house.problem is not None:
        return Refused(503, house.problem)
    refusal = _foreign_host(house, request) or _foreign_page(request)
    if refusal is not None:
        return refusal
    given = _given_token(request)
    if given is not None:
        if house.token is None or not credentials.matches(house.token, given):
            return Refused(403, f"This is not the token of this dashboard. {HOW_TO_ENTER}", is_guess=True)
        return _entered(house.token, request)
    if house.uid is not None and request.peer_uid == house.uid and _is_loopback_name(_name(request.hosts[0])):
        return Allowed()
    if credentials.has_cookie(house.token, request.peer_uid, request.port, request.cookies):
        return Allowed()
    return Refused(403, f"This dashboard cannot tell that it is yours. {HOW_TO_ENTER}")


def _foreign_host(house: House, request: Request) -> Refused | None:
    if len(request.hosts) == 1:
        name = _name(request.hosts[0])
        if name is not None and (_is_loopback_name(name) or _is_shared_name(name, house.share)):
            return None
    named = ", ".join(repr(host[:100]) for host in request.hosts) or "no host"
    return Refused(
        403,
        f"This dashboard is not called {named}. Open it as http://localhost:{request.port}, or by the "
        "address that it was shared under.",
    )


def _foreign_page(request: Request) -> Refused | None:
    """Browsers say which page a request comes from; only the dashboard's own may send any, but every page may
    link to it."""
    own = f"{'https' if request.is_https else 'http'}://{request.hosts[0]}".lower()
    if any(origin.lower() != own for origin in request.origins) or len(request.origins) > 1:
        return Refused(403, f"A page of {request.origins[0][:100]!r} cannot use this dashboard.")
    if not request.origins and (request.is_websocket or request.method not in _READING):
        return Refused(403, f"This request needs the header Origin, with the value {own}.")
    is_from_elsewhere = request.fetch_site in ("cross-site", "same-site")
    if is_from_elsewhere and not (request.is_navigation and request.method in _READING):
        return Refused(403, "Another page cannot use parts of this dashboard.")
    return None


def _given_token(request: Request) -> str | None:
    if request.is_websocket or request.method not in _READING:
        return None
    given = [value for name, value in parse_qsl(request.query, True) if name == TOKEN_PARAMETER]
    return given[0] if given else None


def _entered(token: str, request: Request) -> Entered:
    rest = urlencode([pair for pair in parse_qsl(request.query, True) if pair[0] != TOKEN_PARAMETER])
    # One slash alone: two, or a backslash, would lead to another server.
    path = "/" + quote(request.path.lstrip("/"), safe="/")
    cookie = credentials.set_cookie(token, request.peer_uid, request.port, is_https=request.is_https)
    is_by_page = request.is_browser and request.fetch_site not in ("none", "same-origin")
    return Entered(f"{path}?{rest}" if rest else path, cookie, is_by_page)


def _name(host: str) -> str | None:
    """The name in a Host header, without its port; None when it is not one."""
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
    """Whether a dashboard shared under `share` may be called so. No name can be rebound to what is an address
    already, so one that listens on every interface may be called by any address."""
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
