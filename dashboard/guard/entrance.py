"""The guarded application's parts, put together from the environment: middleware, own routes, start-up."""

import importlib
import pkgutil
import threading
import webbrowser
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import streamlit as st
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

import dashboard.views
from dashboard.guard.middleware import announce
from dashboard.guard.options import options_in_effect, problem_with
from dashboard.guard.peer import own_uid
from dashboard.guard.policy import House
from harness.errors import HomeError
from harness.serving import Serving
from harness.store.home import Home
from harness.store.token import ensure_token

Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]


def house_of(environ: Mapping[str, str]) -> House:
    """The server that is guarded, as Streamlit's options and the environment say. Without a usable token the
    owner's own processes alone get in."""
    share = Serving.from_environ(environ).share
    try:
        token = ensure_token(Home.locate(None, environ))
    except HomeError:
        token = None
    return House(own_uid(), token, share, problem_with(options_in_effect(), share))


def static_files(folder: Path) -> Mount:
    """The dashboard's own scripts and styles at the address that Streamlit gives to a page's static files,
    whether or not Streamlit's option for them is on."""
    base = st.get_option("server.baseUrlPath").strip("/")
    return Mount(f"/{base}/app/static" if base else "/app/static", StaticFiles(directory=folder))


def lifespan(house: House, environ: Mapping[str, str]) -> Lifespan:
    """When the server has come up, it prints what its terminal should know, opens the browser where that was
    requested, and imports the pages, which the first visitor would wait for."""

    @asynccontextmanager
    async def started(app: Any) -> AsyncGenerator[None, None]:
        del app
        announce(house, int(st.get_option("server.port")))
        threading.Thread(target=_import_pages, name="stepscope-import", daemon=True).start()
        url = Serving.from_environ(environ).browser_url
        if url is not None:
            # Nobody waits for the thread: a browser of the terminal's own would never return.
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
        yield

    return started


def _import_pages() -> None:
    for module in pkgutil.iter_modules(dashboard.views.__path__, "dashboard.views."):
        importlib.import_module(module.name)
