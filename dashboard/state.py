"""What the browser session remembers, and the only place that names session_state and query-parameter keys.

The run shown stands in the address (`?run=…`), so that a page can be linked to and reloaded. Widgets of live
settings are called `set_<name>`, those of the form for a new run `new_<name>`.
"""

import time
import uuid
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import streamlit as st

HURRY_S = 5.0
"""How long the live page looks more often after a click."""

_RUN = "run"
_HURRY_UNTIL = "hurry_until"
_START_TOKEN = "start_token"
_PROBLEM = "problem"
_TICK = "tick"
_MEMORY_TICK = "memory_tick"
_TIMING_TICK = "timing_tick"
_ADVICE_TICK = "advice_tick"
_PAGES = "pages"
_LAST_RUN = "last_run"
_STARTING = "starting"
_INTENDED = "intended"
NEW_NAME = "new_name"
"""The key of the new run's name."""


class Key(StrEnum):
    """The keys of the widgets that are not settings."""

    RUN = "pick_run"
    WINDOW = "window"
    FROZEN = "frozen"
    PHASES = "phases"
    CHART = "live_chart"
    CARDS = "live_cards"
    COMPARE_CHART = "compare_chart"
    TABLE = "runs_table"
    MEMORY_CHART = "memory_chart"
    MEMORY_CARDS = "memory_cards"
    TIMING_RANGE = "timing_range"
    TIMING_AGAINST = "timing_against"
    TIMING_CARDS = "timing_cards"
    TIMING_PHASES = "timing_phases"
    TIMING_SPREAD = "timing_spread"
    PROFILE_STEPS = "profile_steps"
    PROFILE_MEMORY = "profile_memory"
    PROFILE_STACKS = "profile_stacks"
    PROFILE_SEARCH = "profile_search"
    PROFILE_WORKS = "profile_works"


class Window(StrEnum):
    """How much of a run the live chart shows."""

    LAST_1K = "1k"
    LAST_5K = "5k"
    ALL = "all"

    @property
    def steps(self) -> int | None:
        """How many steps back it reaches; None: to the first."""
        return {Window.LAST_1K: 1_000, Window.LAST_5K: 5_000}.get(self)


class Tick(NamedTuple):
    """What the last tick of the live page drew, kept to be drawn again while nothing is new, and what it
    read, for the next tick to continue."""

    run: str
    token: tuple[Any, ...]
    read: Any
    figure: bytes
    cards: Sequence[Any]
    alerts: Sequence[Any]


class MemoryTick(NamedTuple):
    """What the last tick of the Memory page drew, kept to be drawn again while nothing is new."""

    token: tuple[Any, ...]
    figure: bytes
    drawing: Any


class TimingTick(NamedTuple):
    """What the last tick of the Profiler page read and drew, kept while nothing is new."""

    token: tuple[Any, ...]
    seen: Any
    against: Any
    phases: bytes
    spread: bytes


class AdviceTick(NamedTuple):
    """The advice given last, and the look at the run that it belongs to, kept while nothing is new."""

    token: tuple[Any, ...]
    seen: Any
    advised: Any


def keep_pages(pages: Mapping[str, Any]) -> None:
    """Remember the pages by name, so that any piece of the dashboard can lead to them."""
    st.session_state[_PAGES] = pages


def page(name: str) -> Any:
    """The page called `name`, for st.switch_page and st.page_link."""
    return st.session_state[_PAGES][name]


def run_id() -> str | None:
    """The run named in the address."""
    value = st.query_params.get(_RUN)
    return str(value) if value else None


def last_run() -> str | None:
    """The run shown last, on whatever page: links between pages do not carry the address on."""
    return st.session_state.get(_LAST_RUN)


def show_run(run: str) -> None:
    """Name `run` in the address."""
    st.session_state[_LAST_RUN] = run
    if st.query_params.get(_RUN) != run:
        st.query_params[_RUN] = run


def run_query(run: str) -> dict[str, str]:
    """The query parameters of a link to `run`."""
    return {_RUN: run}


def window() -> Window:
    """How much of the run the chart shows."""
    return Window(st.session_state.get(Key.WINDOW) or Window.ALL)


def is_frozen() -> bool:
    """Whether the chart stands still while the run goes on."""
    return bool(st.session_state.get(Key.FROZEN, False))


def shows_phases() -> bool:
    """Whether step time is drawn as stacked phases."""
    return bool(st.session_state.get(Key.PHASES, False))


def chart_view(revision: str, key: Key = Key.CHART) -> tuple[float, float] | None:
    """The range of steps zoomed to in a chart, None while the whole is shown. A range that was chosen in
    another run or window does not count."""
    view = (st.session_state.get(key) or {}).get("view")
    if not view or view["revision"] != revision or not view["range"]:
        return None
    return float(view["range"][0]), float(view["range"][1])


def hurry() -> None:
    """Look more often for some seconds: something was asked of the run."""
    st.session_state[_HURRY_UNTIL] = time.monotonic() + HURRY_S


def is_hurrying() -> bool:
    """Whether the page looks more often."""
    until: float = st.session_state.get(_HURRY_UNTIL, 0.0)
    return time.monotonic() < until


def last_tick() -> Tick | None:
    """What the live page drew last."""
    return st.session_state.get(_TICK)


def keep_tick(tick: Tick) -> None:
    """Remember what was drawn."""
    st.session_state[_TICK] = tick


def last_memory_tick() -> MemoryTick | None:
    """What the Memory page drew last."""
    return st.session_state.get(_MEMORY_TICK)


def keep_memory_tick(tick: MemoryTick) -> None:
    """Remember what was drawn there."""
    st.session_state[_MEMORY_TICK] = tick


def last_timing() -> TimingTick | None:
    """What the Profiler page read last."""
    return st.session_state.get(_TIMING_TICK)


def keep_timing(tick: TimingTick) -> None:
    """Remember what was read."""
    st.session_state[_TIMING_TICK] = tick


def last_advice() -> AdviceTick | None:
    """The advice given last."""
    return st.session_state.get(_ADVICE_TICK)


def keep_advice(tick: AdviceTick) -> None:
    """Remember the advice given."""
    st.session_state[_ADVICE_TICK] = tick


def setting_key(name: str) -> str:
    """The key of a live setting's widget."""
    return f"set_{name}"


def new_key(name: str, base: str = "") -> str:
    """The key of a widget in the form for a new run. `base` names the model and size its value comes from:
    another base is another widget."""
    return f"new_{name}_{base}" if base else f"new_{name}"


def widget_value(key: str) -> Any:
    """What a widget holds, None when it was never shown."""
    return st.session_state.get(key)


def put(key: str, value: Any) -> None:
    """Give a widget its value before it is drawn, touching it only where it differs, so that text being typed
    into an unchanged field is left alone."""
    if key not in st.session_state or st.session_state[key] != value:
        st.session_state[key] = value


def intend(values: Mapping[str, Any]) -> None:
    """Remember values for widgets that stand outside the fragment in which they were chosen.

    They are not given to the widgets at once: until the page has drawn those again the browser still sends
    what they held before, and a tick of the fragment that comes in between would bring that back.
    """
    st.session_state[_INTENDED] = {**st.session_state.get(_INTENDED, {}), **values}


def is_intending() -> bool:
    """Whether values wait for the page to be drawn."""
    return _INTENDED in st.session_state


def put_intended() -> None:
    """Give widgets the values that wait for them; called before they are drawn."""
    for key, value in st.session_state.get(_INTENDED, {}).items():
        put(key, value)


def settle_intended() -> None:
    """The widgets were drawn with the values that waited."""
    st.session_state.pop(_INTENDED, None)


def has(key: str) -> bool:
    """Whether a widget of this key is, or just was, on the page."""
    return key in st.session_state


def begin_start() -> None:
    """Start was pressed: the button stays disabled until the answer is there."""
    st.session_state[_STARTING] = True


def end_start() -> None:
    """The start was answered."""
    st.session_state.pop(_STARTING, None)


def is_starting() -> bool:
    """Whether a start is under way."""
    return bool(st.session_state.get(_STARTING, False))


def start_token() -> str:
    """Names one filling-in of the form: however often it is sent, it starts one run."""
    token: str = st.session_state.setdefault(_START_TOKEN, uuid.uuid4().hex)
    return token


def renew_start_token() -> None:
    """The next start is another run."""
    st.session_state.pop(_START_TOKEN, None)


def say_problem(sentence: str) -> None:
    """Remember a sentence to show once, above the page."""
    st.session_state[_PROBLEM] = sentence


def take_problem() -> str | None:
    """The sentence to show, once."""
    sentence: str | None = st.session_state.pop(_PROBLEM, None)
    return sentence
