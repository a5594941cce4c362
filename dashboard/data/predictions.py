"""Predictions of a run's memory: one warm child process and its answers, shared by all browser sessions."""

import streamlit as st

from dashboard.data.runs import home
from harness.predict.asking import Predictor


@st.cache_resource(show_spinner=False)
def predictor() -> Predictor:
    """The dashboard's predictor; its child process starts with the first question that has no answer yet."""
    return Predictor(home().path)
