"""The secret that gives access to the dashboard from outside of the owner's processes.

A file in the home, readable only by its owner. Deleting it and restarting the dashboard revokes access.
"""

import os
import secrets
import stat
from pathlib import Path

from harness.errors import HomeError
from harness.store.home import Home

# 32 bytes from the system's generator: 256 bits.
_TOKEN_BYTES = 32
_SHORTEST = 22  # characters of base64 for 128 bits
_LONGEST = 512
_RENEW = "Delete it; the next start creates a new one."
TOKEN_FILE = "dashboard-token"


def read_token(home: Home) -> str | None:
    """Return the home's token, None without one. Raises HomeError when others may know or have chosen it."""
    path = home.path / TOKEN_FILE
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HomeError(f"{path} cannot be read: {error.strerror}. {_RENEW}") from None
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
            raise HomeError(
                f"{path} is not a file that only you own and can read (mode 0600), so others may know its "
                f"token. {_RENEW}"
            )
        token = file.read(_LONGEST + 1).decode("ascii", errors="replace").strip()
    if not _SHORTEST <= len(token) <= _LONGEST or not token.isascii() or not token.isprintable():
        raise HomeError(f"{path} contains no usable token. {_RENEW}")
    return token


def ensure_token(home: Home) -> str:
    """Return the home's token, creating it if there is none. Raises HomeError."""
    home.check_writable()
    path = home.path / TOKEN_FILE
    present = read_token(home)
    if present is not None:
        return present
    draft = path.with_name(f".{TOKEN_FILE}-{secrets.token_hex(4)}")
    try:
        _write_private(draft, secrets.token_urlsafe(_TOKEN_BYTES))
        # A link fails if another process was first, and the file never contains half a token.
        os.link(draft, path)
    except FileExistsError:
        pass
    except OSError as error:
        raise HomeError(f"No token could be written to {home.path}: {error.strerror}.") from None
    finally:
        draft.unlink(missing_ok=True)
    token = read_token(home)
    if token is None:
        raise HomeError(f"{path} was deleted while it was created; try again.")
    return token


def _write_private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text + "\n")
