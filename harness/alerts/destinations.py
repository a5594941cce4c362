"""Sending one alert: by a command or to a webhook, in a bounded time."""

import json
import os
import re
import signal
import subprocess
import tempfile
import threading
from contextlib import suppress
from http.client import HTTPException
from typing import Protocol
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from harness.alerts.alert import RunAlert
from harness.alerts.options import WebhookFormat, format_of, place_of, split_command
from harness.words import clip, printable

# Of one attempt: a command, or a request to a webhook.
TIMEOUT_S = 10.0
# A request gets so much longer, to report which of its waits was too long.
_GRACE_S = 0.25
_MOST_LATE = 5
_PLACEHOLDER = re.compile(r"\{(text|run|kind)\}")
_LONGEST_REASON = 200
# Responses that may be different later; any other refusal is final.
_TEMPORARY = frozenset({408, 425, 429})
# What a person can do about a failure.
_CHECK_COMMAND = "Check the command of --on-alert; a program that is not in the PATH needs its full path."
_TRY_COMMAND = "Run the command in a shell with the same arguments to see its error."
_END_SOONER = "The command has to end sooner, or to start in the background what takes long."
_CHECK_ADDRESS = "Check the address of --alert-webhook and the format (--alert-format)."
_CHECK_SERVER = "Check that a web server runs at this address, and that this machine can reach it."
_WAIT_FOR_SERVER = "That web server has to recover; the address was reached."


class DeliveryError(Exception):
    """An alert was not delivered. `remedy` is a sentence on what a person can do; `is_final`: another attempt
    would fail too."""

    def __init__(self, message: str, remedy: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.remedy = remedy
        self.is_final = is_final


class Destination(Protocol):
    """The receiver of alerts. `name` has no secret."""

    @property
    def name(self) -> str:
        """The name in messages."""

    def send(self, alert: RunAlert) -> None:
        """Send an alert. Raises DeliveryError."""


class ProgramDestination:
    """A program, started without a shell for each alert. {text}, {run} and {kind} are replaced within its
    arguments, which are split before: a run's name cannot add an argument or an option."""

    def __init__(self, command: str, timeout_s: float = TIMEOUT_S) -> None:
        """Raises UsageError for a command line that cannot be split."""
        self._arguments = split_command(command)
        self._timeout_s = timeout_s
        self.name = f"the command {printable(self._arguments[0])}"

    def send(self, alert: RunAlert) -> None:
        """Run the command. Raises DeliveryError when it cannot be started, fails, or does not end in time:
        then it is killed, with the processes that it started."""
        arguments = [filled(argument, alert) for argument in self._arguments]
        # A file, not a pipe: what the command leaves running may write into it after its end.
        with tempfile.TemporaryFile() as errors:
            try:
                process = subprocess.Popen(
                    arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    start_new_session=True,
                )
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                text = f"it cannot be started: {reason}"
                raise DeliveryError(text, _CHECK_COMMAND, is_final=True) from None
            try:
                code = process.wait(self._timeout_s)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise DeliveryError(f"it did not end within {self._timeout_s:g} s", _END_SOONER) from None
            if code:
                errors.seek(0)
                lines = errors.read(10_000).decode("utf-8", errors="replace").split("\n")
                line = next((line for line in reversed(lines) if line.strip()), "")
                said = f": {clip(printable(line), _LONGEST_REASON)}" if line else ""
                raise DeliveryError(f"it ended with {code}{said}", _TRY_COMMAND)


class Webhook:
    """A web server that takes alerts as POST requests, in Slack's format or in ntfy's.

    A request runs on a thread of its own: a limit of a socket is one of each wait, and a server that sends a
    byte now and then would block for ever. A request beyond the deadline is left to itself; of those there
    are few at a time.
    """

    def __init__(self, url: str, form: WebhookFormat | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self._url = url
        self._format = form or format_of(url)
        self._timeout_s = timeout_s
        self._late: list[threading.Thread] = []
        self.name = place_of(url)

    def send(self, alert: RunAlert) -> None:
        """Post an alert. Raises DeliveryError."""
        self._late = [thread for thread in self._late if thread.is_alive()]
        if len(self._late) >= _MOST_LATE:
            late = f"{len(self._late)} requests have had no complete answer so far"
            raise DeliveryError(late, _WAIT_FOR_SERVER)
        errors: list[DeliveryError] = []

        def post() -> None:
            try:
                self._post(alert)
            except DeliveryError as error:
                errors.append(error)

        thread = threading.Thread(target=post, name="stepscope-webhook", daemon=True)
        thread.start()
        thread.join(self._timeout_s + _GRACE_S)
        if thread.is_alive():
            self._late.append(thread)
            raise DeliveryError(f"no complete answer within {self._timeout_s:g} s", _WAIT_FOR_SERVER)
        if errors:
            raise errors[0]

    def _post(self, alert: RunAlert) -> None:
        try:
            with urlopen(self._request(alert), timeout=self._timeout_s):
                return
        except HTTPError as error:
            with error:
                is_final = error.code < 500 and error.code not in _TEMPORARY
                remedy = _CHECK_ADDRESS if is_final else _WAIT_FOR_SERVER
                raise DeliveryError(f"it answered {error.code}", remedy, is_final=is_final) from None
        except TimeoutError:
            raise DeliveryError(f"no answer within {self._timeout_s:g} s", _WAIT_FOR_SERVER) from None
        except OSError as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                raise DeliveryError(f"no connection within {self._timeout_s:g} s", _CHECK_SERVER) from None
            text = clip(printable(getattr(reason, "strerror", None) or str(reason)).lower(), _LONGEST_REASON)
            raise DeliveryError(text, _CHECK_SERVER) from None
        except (HTTPException, ValueError) as error:
            reason = f"its answer is not HTTP ({type(error).__name__})"
            raise DeliveryError(reason, _CHECK_ADDRESS) from None

    def _request(self, alert: RunAlert) -> Request:
        match self._format:
            case WebhookFormat.SLACK:
                body = json.dumps({"text": slack_text(alert.text)}).encode()
                return Request(self._url, body, {"Content-Type": "application/json"}, method="POST")
            case WebhookFormat.NTFY:
                headers = {
                    "Content-Type": "text/plain; charset=utf-8",
                    "Title": f"Stepscope: {alert.kind.heading}",
                    "Priority": "high" if alert.kind.is_bad else "default",
                }
                return Request(self._url, alert.text.encode(), headers, method="POST")


def filled(argument: str, alert: RunAlert) -> str:
    """Replace the placeholders in one argument, once: a text with "{run}" in it stays as it is. A value that
    would begin the argument with a hyphen, and so be an option, gets a space before it."""
    values = {"text": alert.text, "run": printable(alert.run), "kind": alert.kind.value}
    result = _PLACEHOLDER.sub(lambda match: values[match[1]], argument)
    return f" {result}" if result.startswith("-") and not argument.startswith("-") else result


def slack_text(text: str) -> str:
    """Escape the characters that Slack interprets: a run named <!channel> notifies nobody else."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
