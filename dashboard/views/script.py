"""The origin of a script's run, and the command that runs a script of one's own."""

from collections.abc import Mapping
from typing import Any

import streamlit as st

from dashboard.data.environment import activation
from harness.records.script import ScriptOrigin
from harness.supervisor.origin import command_line, environment_text, origin_facts

_OWN_COMMAND = "stepscope run train.py --its --own arguments"


def script_facts(origin: ScriptOrigin, versions: Mapping[str, Any]) -> None:
    """Draw the command of a script's run, and where and with which versions it ran."""
    st.caption("Command.")
    st.code(command_line(origin), language="bash", wrap_lines=True)
    with st.container(gap="xxsmall", key="script_facts"):
        for name, text in (*origin_facts(origin), ("environment", environment_text(versions))):
            with st.container(horizontal=True, gap="small", vertical_alignment="center"):
                with st.container(width=130):
                    st.caption(name[0].upper() + name[1:])
                st.text(text, width="stretch")


def own_command() -> None:
    """Draw the command that watches a script of one's own, with a button to copy it."""
    st.caption("Watch your own training script, unchanged. In its folder, type:")
    lines = [line for line in (activation(), _OWN_COMMAND) if line is not None]
    st.code("\n".join(lines), language="bash", wrap_lines=True)
