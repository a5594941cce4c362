"""Predictions of a run's memory: one warm child process and its results, shared by all browser sessions."""

from functools import lru_cache

import streamlit as st

from dashboard.data.runs import RunView, home, memory_limit
from harness.errors import HomeError, LogError, SettingError
from harness.predict.answer import Prediction, Target
from harness.predict.asking import Predictor
from harness.predict.cache import prediction_cache
from harness.predict.error_band import error_band, settled_peak
from harness.predict.question import Question
from harness.records.run import DeviceFacts
from harness.settings import Settings
from harness.store.reader import LogReader
from harness.supervisor.refit import refit_peak

_RECENT_STEPS = 200
_BAND_S = 60.0


@st.cache_resource(show_spinner=False)
def predictor() -> Predictor:
    """Return the dashboard's predictor; its child process starts with the first request not in the cache."""
    return Predictor(home().path)


def cached_prediction(settings: Settings, device: DeviceFacts) -> Prediction | None:
    """Return the cached prediction for a run, if there is one; nothing is computed."""
    key = _key(settings, device)
    prediction = None if key is None else _cache().get(key)
    if prediction is None and key is not None:
        prediction = prediction_cache(home().path).get(key)
        if prediction is not None:
            _cache()[key] = prediction
    return prediction


@lru_cache(maxsize=64)
def _key(settings: Settings, device: DeviceFacts) -> str | None:
    try:
        return Question.of(settings, Target.of(device)).key
    except SettingError:
        return None


@st.cache_resource(show_spinner=False)
def _cache() -> dict[str, Prediction]:
    return {}


def request_prediction(run: str) -> None:
    """Request a prediction for an active run."""
    _requests().add(run)


def is_requested(run: str) -> bool:
    """Return whether a prediction was requested."""
    return run in _requests()


@st.cache_resource(show_spinner=False)
def _requests() -> set[str]:
    return set()


def measured_peak(view: RunView) -> int | None:
    """Return the highest peak of the last steady-state steps with the settings in effect, if any."""
    if not view.history:
        return None
    try:
        with LogReader(view.folder.log) as reader:
            recent = reader.last_steps(_RECENT_STEPS)
    except LogError:
        return None
    return settled_peak(recent, view.history[-1].version)


def refit_sentence(view: RunView) -> str | None:
    """Return the peaks of other batch sizes, from the run's own steps; None while too little was measured."""
    limit = memory_limit(view)
    try:
        with LogReader(view.folder.log) as reader:
            refit = refit_peak(reader)
    except LogError:
        return None
    return None if refit is None else refit.sentence(None if limit is None else limit[0])


@st.cache_data(ttl=_BAND_S, show_spinner=False)
def error_sentence(target: Target) -> str | None:
    """Return the prediction error over the home's finished runs on this device; None without such runs."""
    try:
        band = error_band(home(), target)
    except HomeError:
        return None
    return None if band is None else band.sentence
