"""Token and cookie: the credentials of clients other than the owner's own processes."""

import hashlib
import hmac
from collections.abc import Iterable

# The holder of a cookie if the connection does not identify a local user.
_REMOTE = "remote"


def matches(token: str | None, candidate: str) -> bool:
    """Compare `candidate` with the token in constant time."""
    if token is None:
        return False
    return hmac.compare_digest(token.encode(), candidate.encode("utf-8", errors="replace"))


def cookie_name(port: int) -> str:
    """Return the cookie's name for this port: browsers send cookies to every port of a host."""
    return f"stepscope_{port}"


def cookie_value(token: str, uid: int | None) -> str:
    """Return the cookie's proof. It does not reveal the token, and the proof of one local user is invalid for
    another, whose server on another port may receive it from the browser."""
    holder = _REMOTE if uid is None else f"uid {uid}"
    return hmac.new(token.encode(), f"dashboard cookie for {holder}".encode(), hashlib.sha256).hexdigest()


def has_cookie(token: str | None, uid: int | None, port: int, headers: Iterable[str]) -> bool:
    """Return whether one of the `Cookie` headers contains the proof."""
    if token is None:
        return False
    name, proof = cookie_name(port), cookie_value(token, uid)
    pairs = (pair.strip().partition("=") for header in headers for pair in header.split(";"))
    return any(key == name and matches(proof, value) for key, _, value in pairs)


def set_cookie(token: str, uid: int | None, port: int, *, is_https: bool) -> str:
    """Return the `Set-Cookie` header with the proof, valid until the browser is closed."""
    secure = "; Secure" if is_https else ""
    return f"{cookie_name(port)}={cookie_value(token, uid)}; Path=/; HttpOnly; SameSite=Strict{secure}"
