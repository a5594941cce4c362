"""`dashboard`: serve the pages, from any folder, with all relevant Streamlit options set.

The command becomes the server (`exec`), so the server has its signals, exit code and terminal. The dashboard
is started by its path and never imported: the harness does not depend on it.
"""

import argparse
import errno
import socket
import sys
import tomllib
from argparse import Namespace
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import harness
from harness.cli.parser import Parser, add_command
from harness.cli.serving import become
from harness.cli.shell import Shell
from harness.cli.watching import add_alert_flags, alert_options
from harness.errors import StepscopeError, UsageError
from harness.serving import Serving
from harness.store.token import ensure_token

_LOOPBACK = "127.0.0.1"
_EVERYWHERE = "0.0.0.0"
_DEFAULT_PORT = 8501
# Number of ports tried after the default one.
_NEXT_PORTS = 100
# Sections of the configuration passed as flags; Streamlit reads the theme itself.
_SECTIONS = ("server", "browser", "client", "runner")
# An address reserved for documentation (RFC 5737): selecting a route to it sends nothing.
_OUTSIDE = ("192.0.2.1", 9)


def add_commands(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the commands of this module."""
    parser = add_command(commands, "dashboard", "open the pages in the browser", serve)
    parser.add_argument(
        "--port", metavar="N", type=int, help=f"default {_DEFAULT_PORT}, else the next free one"
    )
    parser.add_argument("--no-browser", action="store_true", help="print the address and open nothing")
    parser.add_argument(
        "--share",
        metavar="ADDRESS",
        nargs="?",
        const=_EVERYWHERE,
        help="listen on ADDRESS (default: every interface) and print the address with the access token for "
        "others; 127.0.0.1 shares with other users of this machine only",
    )
    parser.add_argument(
        "--read-only",
        action="store_true",
        help="only show runs; disable starting, changing, stopping and deleting them",
    )
    add_alert_flags(parser)


def serve(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope dashboard`. Returns only if the server cannot be started."""
    folder = dashboard_folder()
    home = shell.home(arguments)
    alerts = alert_options(arguments)
    address = arguments.share or _LOOPBACK
    port = _port(arguments.port, address)
    if port != (arguments.port or _DEFAULT_PORT):
        shell.print_status(f"Port {_DEFAULT_PORT} is taken; serving on {port}.")
    local_url = _local_url(address, port)
    if arguments.share is not None:
        token = ensure_token(home)
        shell.print_line(
            f"Stepscope, for everyone with this address: {shared_url(address, port)}/?token={token}"
        )
        if not _is_loopback(address):
            shell.print_status(
                "The connection is not encrypted: share it only on a trusted network, or use `ssh -L`."
            )
    if local_url is not None:
        shell.print_line(f"Stepscope, for your own processes: {local_url}")
    browser_url = None if arguments.no_browser or not _has_screen(shell.environ) else local_url
    destinations = alerts.to_json() if alerts.has_destination else None
    serving = Serving(arguments.share, arguments.read_only, browser_url, destinations)
    environ = serving.to_environ(shell.environ) | {"STEPSCOPE_HOME": str(home.path)}
    become(server_command(folder, address, port), environ)


def dashboard_folder() -> Path:
    """Return the folder of the dashboard's package, next to the harness. Raises StepscopeError if missing."""
    folder = Path(harness.__file__).parents[1] / "dashboard"
    if not (folder / "__main__.py").is_file():
        raise StepscopeError(f"There is no dashboard in {folder}; reinstall Stepscope.")
    return folder


def server_command(folder: Path, address: str, port: int) -> list[str]:
    """Return the server's command line. Flags override every file and variable that Streamlit reads."""
    with (folder / ".streamlit" / "config.toml").open("rb") as file:
        configuration = tomllib.load(file)
    options = {section: dict(configuration.get(section, {})) for section in _SECTIONS}
    options["server"] |= {"address": address, "port": port}
    if address != _LOOPBACK:
        # Streamlit's list has no ports and no "any address"; the guard checks the Host itself.
        options["server"]["allowedHosts"] = ["*"]
    flags = [flag for section, values in options.items() for flag in _flags(section, values)]
    # Streamlit's welcome message would query another machine for this one's address when shared.
    flags += ["--logger.hideWelcomeMessage", "true"]
    # -P: no module is imported from the current folder by accident.
    return [sys.executable, "-P", str(folder / "__main__.py"), *flags]


def shared_url(address: str, port: int) -> str:
    """Return the address for others, without the token."""
    return _url(_own_address() if address in (_EVERYWHERE, "::") else address, port)


def _flags(section: str, values: Mapping[str, Any]) -> list[str]:
    flags = []
    for name, value in values.items():
        for item in value if isinstance(value, list) else [value]:
            text = str(item).lower() if isinstance(item, bool) else str(item)
            flags += [f"--{section}.{name}", text]
    return flags


def _port(requested: int | None, address: str) -> int:
    """Return the port to serve on. Raises UsageError for an invalid number, StepscopeError if the requested
    port is in use."""
    if requested is not None and not 1 <= requested <= 65_535:
        raise UsageError(f"--port cannot be {requested}; it takes a whole number from 1 to 65535.")
    first = requested or _DEFAULT_PORT
    free = next(
        (port for port in range(first, min(first + _NEXT_PORTS, 65_536)) if _is_free(address, port)), None
    )
    if free is None:
        raise StepscopeError(
            f"Ports {first} to {first + _NEXT_PORTS - 1} are all taken; name another: --port N."
        )
    if requested is not None and free != requested:
        raise StepscopeError(f"Port {requested} is taken; {free} is free: stepscope dashboard --port {free}")
    return free


def _is_free(address: str, port: int) -> bool:
    """Return whether a server can listen there. Raises UsageError if the address is not this machine's."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except (socket.gaierror, UnicodeError):
        raise UsageError(f"--share cannot listen on {address!r}: there is no such address.") from None
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise UsageError(f"--share cannot listen on {address!r}: it is not this machine's.") from None
        return False
    return True


def _local_url(address: str, port: int) -> str | None:
    """Return the address for the owner's browser; None if the server cannot be reached over loopback."""
    if address in (_LOOPBACK, _EVERYWHERE, "::"):
        return _url("localhost", port)
    return _url(address, port) if _is_loopback(address) else None


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _own_address() -> str:
    """Return the network address of this machine, else its name."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(_OUTSIDE)
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()


def _has_screen(environ: Mapping[str, str]) -> bool:
    """Return whether a browser can open a window; otherwise Python would start a text browser."""
    return sys.platform == "darwin" or any(environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
