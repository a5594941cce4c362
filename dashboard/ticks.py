"""The last drawing of each live page in a browser session, reused while the log of its run is unchanged."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import streamlit as st

_TICK = "tick"
_MEMORY_TICK = "memory_tick"
_TIMING_TICK = "timing_tick"
_ADVICE_TICK = "advice_tick"


class Tick(NamedTuple):
    """Data and drawing of the live page's last tick: the drawing is reused while the log is unchanged, and
    the next tick reads only newer data."""

    run: str
    token: tuple[Any, ...]
    read: Any
    figure: bytes
    cards: Sequence[Any]
    alerts: Sequence[Any]


class MemoryTick(NamedTuple):
    """The last drawing of the Memory page, reused while the log is unchanged."""

    token: tuple[Any, ...]
    figure: bytes
    drawing: Any


class TimingTick(NamedTuple):
    """Data and charts of the Profiler page's last tick, reused while the log is unchanged."""

    token: tuple[Any, ...]
    timing: Any
    against: Any
    phases: bytes
    spread: bytes


class AdviceTick(NamedTuple):
    """The last advice with the state of its run, reused while the log is unchanged."""

    token: tuple[Any, ...]
    view: Any
    result: Any


def last_tick() -> Tick | None:
    """Return the live page's last tick."""
    return st.session_state.get(_TICK)


def store_tick(tick: Tick) -> None:
    """Store the live page's last tick."""
    st.session_state[_TICK] = tick


def last_memory_tick() -> MemoryTick | None:
    """Return the Memory page's last tick."""
    return st.session_state.get(_MEMORY_TICK)


def store_memory_tick(tick: MemoryTick) -> None:
    """Store the Memory page's last tick."""
    st.session_state[_MEMORY_TICK] = tick


def last_timing() -> TimingTick | None:
    """Return the Profiler page's last tick."""
    return st.session_state.get(_TIMING_TICK)


def store_timing(tick: TimingTick) -> None:
    """Store the Profiler page's last tick."""
    st.session_state[_TIMING_TICK] = tick


def last_advice() -> AdviceTick | None:
    """Return the last advice."""
    return st.session_state.get(_ADVICE_TICK)


def store_advice(tick: AdviceTick) -> None:
    """Store the last advice."""
    st.session_state[_ADVICE_TICK] = tick
