"""Predictions of a run's memory: one warm child process and its answers, shared by all browser sessions."""

from functools import lru_cache

import streamlit as st

from dashboard.data.runs import home
from harness.errors import SettingError
from harness.predict.asking import Predictor
from harness.predict.cache import PredictionCache
from harness.predict.question import Question
from harness.prediction import Prediction, Target
from harness.records import DeviceFacts
from harness.settings import Settings


@st.cache_resource(show_spinner=False)
def predictor() -> Predictor:
    """The dashboard's predictor; its child process starts with the first question that has no answer yet."""
    return Predictor(home().path)


def known(settings: Settings, device: DeviceFacts) -> Prediction | None:
    """The prediction for a run that goes on, where one was made before: nothing is computed beside it."""
    key = _key(settings, device)
    found = None if key is None else _found().get(key)
    if found is None and key is not None:
        found = PredictionCache(home().path / "predictions").get(key)
        if found is not None:
            _found()[key] = found
    return found


@lru_cache(maxsize=64)
def _key(settings: Settings, device: DeviceFacts) -> str | None:
    try:
        return Question.of(settings, Target.of(device)).key
    except SettingError:
        return None


@st.cache_resource(show_spinner=False)
def _found() -> dict[str, Prediction]:
    return {}
