"""The parts of the guarded application, built from the environment: middleware, own routes, startup."""

import importlib
import pkgutil
import threading
import webbrowser
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import streamlit as st
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

import dashboard.views
from dashboard.guard.middleware import announce
from dashboard.guard.options import options_in_effect, problem_with
from dashboard.guard.peer import own_uid
from dashboard.guard.policy import GuardedServer
from harness.errors import HomeError
from harness.serving import Serving
from harness.store.home import Home
from harness.store.token import ensure_token

Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]


def guarded_server_of(environ: Mapping[str, str]) -> GuardedServer:
    """Describe the server from Streamlit's options and the environment. Without a usable token only the
    owner's own processes get access."""
    share = Serving.from_environ(environ).share
    try:
        token = ensure_token(Home.locate(None, environ))
    except HomeError:
        token = None
    return GuardedServer(own_uid(), token, share, problem_with(options_in_effect(), share))


def static_files(folder: Path) -> Mount:
    """Serve the dashboard's scripts and styles at Streamlit's address of static files, independently of
    Streamlit's option for them."""
    return Mount(under_base("/app/static"), StaticFiles(directory=folder))


def under_base(path: str) -> str:
    """Return the address of `path` under Streamlit's base path."""
    base = st.get_option("server.baseUrlPath").strip("/")
    return f"/{base}{path}" if base else path


def lifespan(
    server: GuardedServer,
    environ: Mapping[str, str],
    services: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Lifespan:
    """Build the startup handler: print the announcement, open the browser if requested, and import the pages,
    so that the first visitor does not wait for it. `services` run until the shutdown."""

    @asynccontextmanager
    async def started(app: Any) -> AsyncGenerator[None, None]:
        del app
        announce(server, int(st.get_option("server.port")))
        threading.Thread(target=_import_pages, name="stepscope-import", daemon=True).start()
        url = Serving.from_environ(environ).browser_url
        if url is not None:
            # The thread is not joined: a text browser in the terminal would never return.
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
        with services():
            yield

    return started


def _import_pages() -> None:
    for module in pkgutil.iter_modules(dashboard.views.__path__, "dashboard.views."):
        importlib.import_module(module.name)
