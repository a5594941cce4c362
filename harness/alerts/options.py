"""The destinations of alerts, as given to a command, and their validation."""

import json
import shlex
from enum import StrEnum
from typing import NamedTuple
from urllib.parse import urlsplit

from harness.errors import UsageError


class WebhookFormat(StrEnum):
    """The formats of a webhook's request."""

    # {"text": …}, which Mattermost, Rocket.Chat, Google Chat and Discord (…/slack) accept too.
    SLACK = "slack"
    # The text as it is, with a title and a priority in headers.
    NTFY = "ntfy"


class AlertOptions(NamedTuple):
    """The destinations: command lines with placeholders, and the addresses of webhooks."""

    commands: tuple[str, ...] = ()
    webhooks: tuple[str, ...] = ()
    # None: by the address of each webhook.
    webhook_format: WebhookFormat | None = None

    @property
    def has_destination(self) -> bool:
        """True unless alerts go nowhere."""
        return bool(self.commands or self.webhooks)

    def to_json(self) -> str:
        """Serialize, for the environment of a server."""
        return json.dumps(self._asdict())

    @classmethod
    def from_json(cls, text: str) -> "AlertOptions":
        """Undo `to_json`. Raises ValueError for any other text."""
        try:
            values = json.loads(text)
            chosen = values["webhook_format"]
            form = None if chosen is None else WebhookFormat(chosen)
            return cls(tuple(values["commands"]), tuple(values["webhooks"]), form)
        except (KeyError, TypeError) as error:
            raise ValueError(f"{text[:100]!r} is not the destinations of alerts: {error}") from None

    def check(self) -> None:
        """Raise UsageError for a destination that cannot work."""
        for command in self.commands:
            split_command(command)
        for url in self.webhooks:
            check_url(url)


def split_command(command: str) -> list[str]:
    """Return the arguments of a command line. Raises UsageError."""
    try:
        arguments = shlex.split(command)
    except ValueError as error:
        reason = str(error).lower()
        raise UsageError(f"--on-alert cannot run {command!r}: {reason}.") from None
    if not arguments:
        raise UsageError("--on-alert needs a command, such as: --on-alert 'notify-send {text}'.")
    return arguments


def check_url(url: str) -> None:
    """Raise UsageError for an address that is not one of a web server. The address is not repeated in
    full: it often contains a secret."""
    try:
        parts = urlsplit(url)
        is_web = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        is_web = False
    if not is_web or not url.isprintable() or " " in url:
        raise UsageError(
            f"--alert-webhook cannot be {url[:12]!r}…; it takes an address that begins with http:// or https://."
        )


def format_of(url: str) -> WebhookFormat:
    """Return the format of a webhook by its address: ntfy's for a host named so, else Slack's."""
    names = (urlsplit(url).hostname or "").split(".")
    return WebhookFormat.NTFY if "ntfy" in names else WebhookFormat.SLACK


def place_of(url: str) -> str:
    """Return the address of a webhook without its path, which is its secret."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port else "")
