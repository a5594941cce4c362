"""The state of a browser session: the only module with keys of widgets and query parameters.

The run shown is in the address (`?run=…`), so that a page can be linked to and reloaded. Keys of the widgets
of live settings are `bar_<name>_<number>`, or begin with `popover` or `script`; those of the form for a new
run are `new_<name>`.
"""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, cast

import streamlit as st

from dashboard.callbacks import to_the_end
from harness.store.labels import Labels

# How long the live page polls faster after a request.
FAST_POLL_S = 5.0
# The same command within this time is taken for the same click.
_SAME_CLICK_S = 1.0
# How long a rejected request stays on the page, which may run again at once.
_PROBLEM_S = 6.0

_RUN = "run"
_RUNS = "runs"
_COMPARISON = "comparison"
_FAST_POLL_UNTIL = "hurry_until"
_LAST_COMMAND = "last_command"
_START_TOKEN = "start_token"
_PROBLEM = "problem"
_MEASURED_SETTING = "measured_setting"
_PAGES = "pages"
_LAST_RUN = "last_run"
_STARTING = "starting"
_WHEN_FREE = "when_free"
_TUNES_STARTED = "tunes_started"
_LABELS_FORM = "labels_form"
_QUEUED_VALUES = "intended"
# Followed by the place of a setting or a command: how often its widget was replaced.
_WIDGETS = "widgets_of_"
# The key of the new run's name.
NEW_NAME = "new_name"


class Key(StrEnum):
    """The keys of the widgets that are not settings."""

    RUN = "pick_run"
    WINDOW = "window"
    FROZEN = "frozen"
    PHASES = "phases"
    CHART = "live_chart"
    CARDS = "live_cards"
    COMPARE_CHART = "compare_chart"
    SCALAR_CHART = "scalar_chart"
    COMPARE_AXIS = "compare_axis"
    COMPARE_SPREAD = "compare_spread"
    COMPARE_PHASES = "compare_phases"
    COMPARE_KINDS = "compare_kinds"
    COMPARE_MEMORY = "compare_memory"
    COMPARE_SCALARS = "compare_scalars"
    COMPARED_SCALARS = "compared_scalars"
    COMPARED = "compared_runs"
    RANK_PHASES = "rank_phases"
    RANK_LATE = "rank_late"
    BELL = "bell"
    TABLE = "runs_table"
    RUNS_SEARCH = "runs_search"
    RUNS_ORDER = "runs_order"
    MEMORY_CHART = "memory_chart"
    MEMORY_CARDS = "memory_cards"
    TIMING_RANGE = "timing_range"
    TIMING_AGAINST = "timing_against"
    TIMING_CARDS = "timing_cards"
    TIMING_PHASES = "timing_phases"
    TIMING_SPREAD = "timing_spread"
    MEASURE_PAIRS = "measure_pairs"
    TUNE = "pick_tune"
    TUNE_FRONT = "tune_front"
    TUNE_WATERFALL = "tune_waterfall"
    PROFILE_STEPS = "profile_steps"
    PROFILE_MEMORY = "profile_memory"
    PROFILE_STACKS = "profile_stacks"
    PROFILE_SEARCH = "profile_search"
    PROFILE_WORKS = "profile_works"


class ChartWindow(StrEnum):
    """The range of steps in the live chart."""

    LAST_1K = "1k"
    LAST_5K = "5k"
    ALL = "all"

    @property
    def steps(self) -> int | None:
        """Number of newest steps; None for all."""
        return {ChartWindow.LAST_1K: 1_000, ChartWindow.LAST_5K: 5_000}.get(self)


def store_pages(pages: Mapping[str, Any]) -> None:
    """Store the pages by name, for links from any view."""
    st.session_state[_PAGES] = pages


def page(name: str) -> Any:
    """Return the page `name`, for st.switch_page and st.page_link."""
    return st.session_state[_PAGES][name]


def run_id() -> str | None:
    """Return the run in the address."""
    value = st.query_params.get(_RUN)
    return str(value) if value else None


def last_run() -> str | None:
    """Return the run shown last on any page: links between pages drop the query parameters."""
    return st.session_state.get(_LAST_RUN)


def show_run(run: str) -> None:
    """Put `run` into the address."""
    st.session_state[_LAST_RUN] = run
    if st.query_params.get(_RUN) != run:
        st.query_params[_RUN] = run


def begin_comparison(names: Mapping[str, str], most: int) -> tuple[list[str], list[str]]:
    """Choose the runs in the address, by their ids or names, for a comparison, at the first visit of the page
    and when the browser went back or forward; return the chosen ones, the default of their widget, and those
    that do not exist. `names` are the names of all runs by their ids, the newest first."""
    ids = {name: run_id for run_id, name in reversed(list(names.items()))} | {
        run_id: run_id for run_id in names
    }
    address = str(st.query_params.get(_RUNS, ""))
    runs = list(dict.fromkeys(ids.get(word, word) for word in address.split(",") if word))
    selected, before = widget_value(Key.COMPARED), st.session_state.get(_COMPARISON, (address, None))
    # A selection may come before the browser has the address of the one before it.
    is_new = selected is None or (address != before[0] and tuple(selected) == before[1])
    chosen = [run for run in (runs if is_new else selected) if run in names][:most]
    set_value_of_drawn(Key.COMPARED, chosen)
    return chosen, [run for run in runs if run not in names][:most]


def show_comparison(runs: Sequence[str]) -> None:
    """Put the runs of a comparison into the address."""
    text = ",".join(runs)
    if text and st.query_params.get(_RUNS) != text:
        st.query_params[_RUNS] = text
    st.session_state[_COMPARISON] = str(st.query_params.get(_RUNS, "")), tuple(runs)


def comparison_query(runs: Sequence[str]) -> dict[str, str]:
    """Return the query parameters of a link to a comparison."""
    return {_RUNS: ",".join(runs)}


def run_query(run: str) -> dict[str, str]:
    """Return the query parameters of a link to `run`."""
    return {_RUN: run}


def window() -> ChartWindow:
    """Return the range of steps in the chart."""
    return ChartWindow(st.session_state.get(Key.WINDOW) or ChartWindow.ALL)


def is_frozen() -> bool:
    """Return whether the chart is frozen."""
    return bool(st.session_state.get(Key.FROZEN, False))


def shows_phases() -> bool:
    """Return whether step time is drawn as stacked phases."""
    return bool(st.session_state.get(Key.PHASES, False))


def scalars_key(run: str) -> str:
    """Return the key of the widget that selects the scalars of a run."""
    return f"scalars_{run}"


def selected_scalars(run: str) -> list[str] | None:
    """Return the scalars selected for the chart; None before a selection."""
    return st.session_state.get(scalars_key(run))


def chart_zoom(revision: str, key: Key = Key.CHART) -> tuple[float, float] | None:
    """Return the range of steps zoomed to in a chart; None without a zoom, or if it belongs to another
    revision, that is, to another run or window."""
    view = (st.session_state.get(key) or {}).get("view")
    if not view or view["revision"] != revision or not view["range"]:
        return None
    return float(view["range"][0]), float(view["range"][1])


def are_notifications_on() -> bool:
    """Return whether this tab's browser shows notifications."""
    return bool((st.session_state.get(Key.BELL) or {}).get("on"))


def poll_faster() -> None:
    """Poll faster for some seconds, after a request to the run."""
    st.session_state[_FAST_POLL_UNTIL] = time.monotonic() + FAST_POLL_S


def is_polling_faster() -> bool:
    """Return whether the page polls faster."""
    until: float = st.session_state.get(_FAST_POLL_UNTIL, 0.0)
    return time.monotonic() < until


def is_repeated(command: tuple[str, ...]) -> bool:
    """Return whether the same command was sent less than a second ago, and remember this one."""
    before, sent_s = st.session_state.get(_LAST_COMMAND, (None, 0.0))
    now_s = time.monotonic()
    if before == command and now_s - sent_s < _SAME_CLICK_S:
        return True
    st.session_state[_LAST_COMMAND] = (command, now_s)
    return False


def measured_setting() -> str | None:
    """Return the setting that the form of a measurement is open for."""
    return st.session_state.get(_MEASURED_SETTING)


@to_the_end
def set_measured_setting(name: str | None) -> None:
    """Open the form of a measurement for a setting; None closes it."""
    st.session_state[_MEASURED_SETTING] = name


def setting_key(place: str, value: Any, convert: Callable[[Any], Any]) -> str:
    """Return the key of the widget for a live setting with this `value`, at this place of the page: the last
    one's, or a new one if that has another value (by `convert`, as a setting's value).

    A value is never put into a widget that the browser shows. A tick that is on its way from there would
    bring the earlier value, which Streamlit takes for a person's change: the page would undo what was changed
    from the shell. Late values of a replaced widget are known as such, by `is_replaced`.
    """
    key = _newest_key(place)
    if key in st.session_state and convert(st.session_state[key]) != value:
        replace_widget(key)
    return _newest_key(place)


def command_key(place: str) -> str:
    """Return the key of the button at this place of the page that sends a command. The callback replaces the
    button, so that a click on one that a slow connection still shows is known by `is_replaced`."""
    return _newest_key(place)


def replace_widget(key: str) -> None:
    """Have another widget drawn in place of that with `key`, one of `setting_key` or `command_key`."""
    place = key.rpartition("_")[0]
    st.session_state[_WIDGETS + place] = st.session_state.get(_WIDGETS + place, 0) + 1


def is_replaced(key: str) -> bool:
    """Return whether a key of `setting_key` or `command_key` is that of a widget that was replaced."""
    return key != _newest_key(key.rpartition("_")[0])


def _newest_key(place: str) -> str:
    return f"{place}_{st.session_state.get(_WIDGETS + place, 0)}"


def new_key(name: str, base: str = "") -> str:
    """Return the key of a widget in the form for a new run. `base` names the model and size that its default
    belongs to: another base makes another widget."""
    return f"new_{name}_{base}" if base else f"new_{name}"


def widget_value(key: str) -> Any:
    """Return a widget's value; None if it was never shown."""
    return st.session_state.get(key)


def set_widget_value(key: str, value: Any) -> None:
    """Set a widget's value before it is drawn, if it differs: text being typed is not lost."""
    if key not in st.session_state or st.session_state[key] != value:
        st.session_state[key] = value


def set_value_of_drawn(key: str, value: Any) -> None:
    """Set the value of a widget that was drawn before; one that was not has to have `value` as its default.
    Streamlit sends a value that was set with one run of the page alone: a browser that draws only the next
    run, as under load, would show the default, and later report it as a person's choice."""
    if key in st.session_state:
        set_widget_value(key, value)


def set_default_value(key: str, default: str, choices: Sequence[str]) -> None:
    """Do as `set_value_of_drawn` with a `default` that may change between two runs of the page, until another
    of `choices` is selected."""
    marker = f"default_{key}"
    if widget_value(key) not in choices or widget_value(key) == st.session_state.get(marker):
        set_value_of_drawn(key, default)
        st.session_state[marker] = default


def queue_values(values: Mapping[str, Any]) -> None:
    """Queue values for widgets outside of the fragment in which they were selected, for the next run of the
    page: until it has redrawn the widgets, the browser sends their previous values, and a tick of the
    fragment in between would restore those."""
    st.session_state[_QUEUED_VALUES] = {**st.session_state.get(_QUEUED_VALUES, {}), **values}


def has_queued_values() -> bool:
    """Return whether values are queued."""
    return _QUEUED_VALUES in st.session_state


def apply_queued_values() -> None:
    """Apply queued values to widgets; called before they are drawn."""
    for key, value in st.session_state.get(_QUEUED_VALUES, {}).items():
        set_widget_value(key, value)


def clear_queued_values() -> None:
    """Clear the queue once the widgets were drawn with its values."""
    st.session_state.pop(_QUEUED_VALUES, None)


def has_widget(key: str) -> bool:
    """Return whether a widget with this key is, or just was, on the page."""
    return key in st.session_state


@to_the_end
def begin_start(when_free: bool = False) -> None:
    """Mark a start as in progress; its buttons are disabled meanwhile. `when_free`: through the queue."""
    st.session_state[_STARTING] = True
    st.session_state[_WHEN_FREE] = when_free


def end_start() -> None:
    """Mark the start as completed or failed."""
    st.session_state.pop(_STARTING, None)


def is_starting() -> bool:
    """Return whether a start is in progress."""
    return bool(st.session_state.get(_STARTING, False))


def starts_when_free() -> bool:
    """Return whether the start in progress goes through the queue."""
    return bool(st.session_state.get(_WHEN_FREE, False))


def start_token() -> str:
    """Return the token of the current form: however often it is sent, it starts one run."""
    return cast(str, st.session_state.setdefault(_START_TOKEN, uuid.uuid4().hex))


def labels_form(run: str, labels: Labels, *, is_open: bool) -> tuple[Labels, int]:
    """Return the labels that the form of a run shows at first, and the number of the form, for the keys of
    its widgets: an open form stays, until it is saved."""
    labels_run, first_labels, number = st.session_state.get(_LABELS_FORM, (run, labels, 0))
    if first_labels is None or labels_run != run or (first_labels != labels and not is_open):
        first_labels, number = labels, number + 1
    st.session_state[_LABELS_FORM] = (run, first_labels, number)
    return first_labels, number


def end_labels_form() -> None:
    """Let the next form show the labels as saved."""
    run, _, number = st.session_state[_LABELS_FORM]
    st.session_state[_LABELS_FORM] = (run, None, number)


def tunes_started() -> int:
    """Return how many tunes were started from the form in this session."""
    return cast(int, st.session_state.get(_TUNES_STARTED, 0))


def count_started_tune() -> None:
    """Count a tune that was started from the form."""
    st.session_state[_TUNES_STARTED] = tunes_started() + 1


def renew_start_token() -> None:
    """Drop the token, so that the next start makes another run."""
    st.session_state.pop(_START_TOKEN, None)


def set_problem(sentence: str) -> None:
    """Store a sentence to show at the top of the page, for some seconds while the page is drawn anew."""
    st.session_state[_PROBLEM] = (sentence, time.monotonic() + _PROBLEM_S)


def problem() -> str | None:
    """Return the sentence to show."""
    sentence, until_s = st.session_state.get(_PROBLEM, (None, 0.0))
    return sentence if time.monotonic() < until_s else None
