"""Whether Streamlit's options in effect are safe. Code cannot set them once Streamlit has begun to listen."""

from ipaddress import ip_address
from typing import NamedTuple

import streamlit as st

_REMEDY = (
    "Stop this server and start `stepscope dashboard`, which sets every option itself and works from any "
    "folder; to let others in on purpose, `stepscope dashboard --share`."
)


class Options(NamedTuple):
    """The options that decide what leaves this machine."""

    address: str | None
    """Where the server listens; None: on every network interface."""
    gathers_statistics: bool


def options_in_effect() -> Options:
    """The options, whichever file, variable or flag they come from."""
    return Options(st.get_option("server.address"), bool(st.get_option("browser.gatherUsageStats")))


def problem_with(options: Options, share: str | None) -> str | None:
    """Why the dashboard must not answer under these options, and the command that works; None: it may.
    `share` is the address that is shared on purpose."""
    is_meant = share is not None and options.address == share
    if not is_meant and not _is_local(options.address):
        where = options.address or "every network interface"
        return f"Stepscope does not answer here: it was started to listen on {where}. {_REMEDY}"
    if options.gathers_statistics:
        return (
            "Stepscope does not answer here: Streamlit's usage statistics are on "
            f"(browser.gatherUsageStats), and nothing leaves this machine. {_REMEDY}"
        )
    return None


def _is_local(address: str | None) -> bool:
    if address is None:
        return False
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
