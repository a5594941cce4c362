"""What Stepscope itself costs the run that is looked at: one line."""

import streamlit as st

from dashboard.components import plain
from dashboard.data.own_cost import own_cost
from dashboard.data.runs import Look

_HELP = (
    "Now and then some steps are taken without observing them (no phases, no device events, no memory, no "
    "loss) and compared with the observed ones right before and after: on the CPU the median step, on a GPU, "
    "which works behind a queue, how long a whole block took. The figure is the median of these differences, "
    "in brackets its interval of 95 % or more, by order statistics; when zero is in it, no cost is visible. "
    "Such steps, 2 % of all at most, are left out of every statistic. The setting measure_own_cost turns it "
    "off."
)


def line(seen: Look) -> None:
    """Draw it. A fragment's body."""
    told = own_cost(seen)
    if told:
        st.caption(f"**Stepscope itself.** {plain(told)}", help=_HELP)
