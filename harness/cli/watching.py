"""`watch`: alerts of all runs, to commands and webhooks; and the flags for them."""

import argparse
import signal
from argparse import Namespace
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from harness.alerts import AlertOptions, AlertService, RunAlert
from harness.alerts.options import WebhookFormat
from harness.cli.parser import Parser, add_command
from harness.cli.shell import Shell
from harness.errors import UsageError
from harness.files.regular import read_whole
from harness.supervisor import Supervisor

_MOST_ADDRESS_BYTES = 4_096


def add_commands(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the commands of this module."""
    parser = add_command(commands, "watch", "send alerts of all runs to commands and webhooks", watch)
    add_alert_flags(parser)


def add_alert_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the destinations of alerts."""
    group = parser.add_argument_group("alerts")
    group.add_argument(
        "--on-alert", metavar="COMMAND", action="append", default=[],
        help="command to run, without a shell; {text}, {run} and {kind} are replaced, as in "
        "'notify-send {text}'; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--alert-webhook", metavar="URL", action="append", default=[],
        help="address to post to, in the format of Slack or ntfy, or @FILE with the address, which "
        "other users of the machine cannot see; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--alert-format", choices=[form.value for form in WebhookFormat],
        help="format of all webhooks (default: ntfy for a host of that name, else slack)",
    )  # fmt: skip


def alert_options(arguments: Namespace) -> AlertOptions:
    """Return the destinations in the flags. Raises UsageError."""
    form = None if arguments.alert_format is None else WebhookFormat(arguments.alert_format)
    webhooks = tuple(map(_address, arguments.alert_webhook))
    options = AlertOptions(tuple(arguments.on_alert), webhooks, form)
    options.check()
    return options


def _address(word: str) -> str:
    """Return the address of a webhook, of @FILE the content of the file. Raises UsageError."""
    if not word.startswith("@"):
        return word
    try:
        return read_whole(Path(word[1:]).expanduser(), _MOST_ADDRESS_BYTES).decode("utf-8").strip()
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise UsageError(f"--alert-webhook cannot read {word[1:]}: {reason}.") from None


def watch(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope watch`, until a signal ends it. Without a destination alerts are only printed."""
    options, home = alert_options(arguments), shell.home(arguments)

    def announce(alert: RunAlert) -> None:
        shell.print_line(f"{datetime.now():%H:%M:%S}  {alert.text}")
        shell.out.file.flush()

    def report(sentence: str) -> None:
        shell.print_status(f"stepscope: {sentence}")

    with AlertService(Supervisor(home, is_read_only=True), options, report, announce) as service:
        before = signal.signal(signal.SIGTERM, _stopper(service.stop))
        shell.print_status(f"Watching the runs in {home.path}. Ctrl-C ends it.")
        try:
            service.run()
        finally:
            signal.signal(signal.SIGTERM, before)
    return 0


def _stopper(stop: Callable[[], None]) -> Callable[[int, Any], None]:
    return lambda _number, _frame: stop()
