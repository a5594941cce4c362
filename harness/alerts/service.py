"""The service that watches the runs and delivers their alerts until it is closed."""

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from harness.alerts.alert import RunAlert
from harness.alerts.delivery import Delivery, DeliveryStatus
from harness.alerts.destinations import Destination, ProgramDestination, Webhook
from harness.alerts.limits import RateLimit
from harness.alerts.options import AlertOptions
from harness.alerts.watching import AlertWatch
from harness.closing import Closing
from harness.errors import HomeError
from harness.store.home import Home
from harness.store.locking import exclusive
from harness.supervisor import Supervisor

POLL_S = 3.0
_FOLDER = "alerts"
_LOCK_PATIENCE_S = 1.0


def destinations_of(options: AlertOptions) -> list[Destination]:
    """Return the destinations of `options`. Raises UsageError."""
    options.check()
    webhooks = [Webhook(url, options.webhook_format) for url in options.webhooks]
    return [*map(ProgramDestination, options.commands), *webhooks]


class AlertService(Closing):
    """Watches the runs of a home and sends alerts to destinations. A context manager.

    Two services with the same destinations would send everything twice, so the second one is refused.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        options: AlertOptions,
        report: Callable[[str], None],
        on_alert: Callable[[RunAlert], None] = lambda _: None,
    ) -> None:
        """`report` takes sentences about failing destinations, `on_alert` each alert that is sent. Raises
        UsageError, and HomeError when another process has the same destinations or the home cannot be
        written."""
        destinations = destinations_of(options)
        self._report = report
        self._on_alert = on_alert
        self._limit = RateLimit()
        self._problem: str | None = None
        self._closing = threading.Event()
        with ExitStack() as stack:
            history = _history_file(supervisor.home, options)
            stack.enter_context(exclusive(history.with_suffix(".lock"), _LOCK_PATIENCE_S))
            self._watch = AlertWatch(supervisor, history)
            self._deliveries: Sequence[Delivery] = [
                stack.enter_context(Delivery(destination, report)) for destination in destinations
            ]
            self._resources = stack.pop_all()

    def run(self) -> None:
        """Watch until `close`."""
        while not self._closing.is_set():
            self.poll()
            self._closing.wait(POLL_S)

    def poll(self) -> None:
        """Look for alerts once. A home that cannot be read or written is reported once."""
        try:
            alerts = self._watch.poll()
        except (HomeError, OSError) as error:
            self._note_problem(str(error))
            return
        self._note_problem(self._watch.problem)
        for alert in alerts:
            passed = self._limit.passed(alert, time.monotonic())
            if passed is not None:
                self._on_alert(passed)
                for delivery in self._deliveries:
                    delivery.enqueue(passed)

    @property
    def problem(self) -> str | None:
        """The reason why the newest poll could not read the runs or record the alerts; None: it could."""
        return self._problem

    def deliveries(self) -> list[DeliveryStatus]:
        """Return the state of the deliveries to each destination, for any thread."""
        return [delivery.status for delivery in self._deliveries]

    def _note_problem(self, problem: str | None) -> None:
        """Report a problem, unless it is that of the poll before; None: there is none."""
        if problem is not None and problem != self._problem:
            self._report(problem)
        self._problem = problem

    def stop(self) -> None:
        """End `run` after its current poll. May be called from a signal handler."""
        self._closing.set()

    def close(self) -> None:
        """Deliver what waits, for some seconds, and remember what was reported. Idempotent."""
        self._closing.set()
        try:
            self._watch.save()
        except OSError as error:
            self._report(f"What was reported could not be remembered: {error.strerror}.")
        self._resources.close()


def _history_file(home: Home, options: AlertOptions) -> Path:
    """Return the file of a service with these destinations; its name does not reveal them."""
    home.check_writable()
    folder = home.path / _FOLDER
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise HomeError(f"{folder} cannot be created: {(error.strerror or str(error)).lower()}.") from None
    digest = hashlib.sha256(options.to_json().encode()).hexdigest()
    return folder / f"{digest[:16]}.json"
