"""Validation of Streamlit's options in effect. Code cannot set them once Streamlit listens."""

from ipaddress import ip_address
from typing import NamedTuple

import streamlit as st

_REMEDY = (
    "Stop this server and start `stepscope dashboard`, which sets every option itself and works from any "
    "folder; to give others access, use `stepscope dashboard --share`."
)


class Options(NamedTuple):
    """The options that affect data leaving this machine."""

    # The address that the server listens on; None for every network interface.
    address: str | None
    gathers_statistics: bool


def options_in_effect() -> Options:
    """Return the options, from any file, variable or flag."""
    return Options(st.get_option("server.address"), bool(st.get_option("browser.gatherUsageStats")))


def problem_with(options: Options, share: str | None) -> str | None:
    """Return why the dashboard must not respond with these options, and the command that works; None if it
    may. `share` is the address shared on purpose."""
    is_meant = share is not None and options.address == share
    if not is_meant and not _is_local(options.address):
        where = options.address or "every network interface"
        return f"Stepscope does not respond here: it was started to listen on {where}. {_REMEDY}"
    if options.gathers_statistics:
        return (
            "Stepscope does not respond here: Streamlit's usage statistics are on "
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
