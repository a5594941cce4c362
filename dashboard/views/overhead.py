"""The overhead of Stepscope in the run shown: one line."""

import streamlit as st

from dashboard.components import plain
from dashboard.data.overhead import overhead_sentence
from dashboard.data.runs import RunView

_HELP = (
    "From time to time a block of steps runs unobserved (no phases, no device events, no memory readings, no "
    "loss) and is compared with the observed steps right before and after it: on the CPU by median step "
    "time, on a GPU, which runs asynchronously, by the duration of the whole block. The figure is the median "
    "of these differences, with a confidence interval of at least 95 % from order statistics in brackets; if "
    "zero lies within it, no overhead is visible. Unobserved steps, at most 2 % of all, are excluded from "
    "every statistic. The setting measure_overhead turns this off."
)


def line(view: RunView) -> None:
    """Draw the line. Runs in a fragment."""
    text = overhead_sentence(view)
    if text:
        st.caption(f"**Overhead.** {plain(text)}", help=_HELP)
