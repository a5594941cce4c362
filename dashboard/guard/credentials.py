"""Token and cookie: how somebody who is not the owner's own process proves to have been let in."""

import hashlib
import hmac
from collections.abc import Iterable

# Who a cookie was given to where the connection does not name a local user.
_REMOTE = "remote"


def matches(token: str | None, given: str) -> bool:
    """Whether `given` is the token, in a time that does not depend on where they differ."""
    if token is None:
        return False
    return hmac.compare_digest(token.encode(), given.encode("utf-8", errors="replace"))


def cookie_name(port: int) -> str:
    """The cookie of the dashboard on this port: browsers send cookies to every port of a host."""
    return f"stepscope_{port}"


def cookie_value(token: str, uid: int | None) -> str:
    """The proof that a cookie carries. It does not give the token away, and one that was given to a local
    user is worth nothing to another, whose server on another port may be sent it by the browser."""
    holder = _REMOTE if uid is None else f"uid {uid}"
    return hmac.new(token.encode(), f"dashboard cookie for {holder}".encode(), hashlib.sha256).hexdigest()


def has_cookie(token: str | None, uid: int | None, port: int, headers: Iterable[str]) -> bool:
    """Whether one of the `Cookie` headers carries the proof."""
    if token is None:
        return False
    name, proof = cookie_name(port), cookie_value(token, uid)
    pairs = (pair.strip().partition("=") for header in headers for pair in header.split(";"))
    return any(key == name and matches(proof, value) for key, _, value in pairs)


def set_cookie(token: str, uid: int | None, port: int, *, is_https: bool) -> str:
    """The `Set-Cookie` header that hands the proof out, for as long as the browser stays open."""
    secure = "; Secure" if is_https else ""
    return f"{cookie_name(port)}={cookie_value(token, uid)}; Path=/; HttpOnly; SameSite=Strict{secure}"
