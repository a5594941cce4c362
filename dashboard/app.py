"""The entry point of the dashboard: `streamlit run dashboard/app.py` serves the pages behind the guard."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import streamlit as st
from starlette.middleware import Middleware

from dashboard.alert_service import alert_service
from dashboard.data import runs as run_data
from dashboard.data.queue import continue_queue
from dashboard.delivery import deliver_last_output
from dashboard.download_routes import download_routes
from dashboard.guard.middleware import AccessGuard
from dashboard.guard.setup import guarded_server_of, lifespan, static_files, under_base
from dashboard.metrics_route import metrics_route

_HERE = Path(__file__).parent
_SERVER = guarded_server_of(os.environ)
deliver_last_output()


@contextmanager
def _services() -> Iterator[None]:
    """Send alerts while the server runs, and continue the queue."""
    with alert_service(run_data.supervisor):
        continue_queue()
        yield


# Streamlit finds this assignment by parsing the file, so it has to be a plain one.
app = st.App(
    _HERE / "page.py",
    middleware=[Middleware(AccessGuard, server=_SERVER)],
    routes=[
        static_files(_HERE / "static"),
        metrics_route(under_base("/metrics"), run_data.supervisor),
        *download_routes(under_base, run_data.supervisor),
    ],
    lifespan=lifespan(_SERVER, os.environ, _services),
)
