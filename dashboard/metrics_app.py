"""The application of `stepscope metrics`: the route of the metrics alone, behind the dashboard's guard."""

import os
import socket
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware

from dashboard.guard.middleware import AccessGuard, announce
from dashboard.guard.peer import is_loopback, own_uid
from dashboard.guard.policy import GuardedServer
from dashboard.metrics_route import METRICS_PATH, metrics_route
from harness.errors import StepscopeError
from harness.store.home import Home
from harness.store.token import ensure_token
from harness.supervisor import Supervisor


def serve(host: str, port: int) -> int:
    """Serve until a signal arrives; return the exit code."""
    home = Home.locate(None, os.environ)
    try:
        token = ensure_token(home)
        listening = _listen(host, port)
    except StepscopeError as error:
        print(f"stepscope: {error}", file=sys.stderr)
        return error.exit_code
    share = None if is_loopback(host) else host
    server = GuardedServer(own_uid(), token, share, None)
    app = Starlette(
        routes=[metrics_route(METRICS_PATH, lambda: Supervisor(home, is_read_only=True))],
        middleware=[Middleware(AccessGuard, server=server)],
    )
    address, port = listening.getsockname()[:2]
    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", proxy_headers=False)
    print(f"Metrics for Prometheus: http://{_url_host(address)}:{port}{METRICS_PATH}", flush=True)
    announce(server, port)
    uvicorn.Server(config).run(sockets=[listening])
    return 0


def _listen(host: str, port: int) -> socket.socket:
    """Listen on the address. Raises StepscopeError."""
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(place[:2], family=family)
    except (socket.gaierror, UnicodeError):
        raise StepscopeError(f"--host cannot be {host!r}: there is no such address.") from None
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()  # create_server adds the address to the text.
        sentence = f"Port {port} of {host} cannot be used: {reason}; name another: --port N."
        raise StepscopeError(sentence) from None


def _url_host(address: str) -> str:
    return f"[{address}]" if ":" in address else address
