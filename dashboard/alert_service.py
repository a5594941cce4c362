"""The alerts of `stepscope dashboard --on-alert …`, sent by a thread of the server."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dashboard.data.alert_deliveries import alert_deliveries
from harness.alerts import AlertOptions, AlertService
from harness.errors import StepscopeError
from harness.serving import ALERTS_VARIABLE, Serving
from harness.supervisor import Supervisor

_JOIN_S = 5.0


@contextmanager
def alert_service(supervisor: Callable[[], Supervisor]) -> Iterator[None]:
    """Send alerts within the block, if the server was started with destinations.

    These leave the environment, which training processes inherit: addresses of webhooks are secrets.
    """
    text = Serving.from_environ(os.environ).alerts
    os.environ.pop(ALERTS_VARIABLE, None)
    if text is None:
        yield
        return
    try:
        service = AlertService(supervisor(), AlertOptions.from_json(text), _report)
    except (StepscopeError, ValueError) as error:
        problem = f"No alerts are sent: {error}"
        _report(problem)
        alert_deliveries().refuse(problem)
        yield
        return
    alert_deliveries().use(service)
    thread = threading.Thread(target=service.run, name="stepscope-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        service.stop()
        thread.join(_JOIN_S)
        service.close()


def _report(sentence: str) -> None:
    print(f"stepscope: {sentence}", file=sys.stderr, flush=True)
