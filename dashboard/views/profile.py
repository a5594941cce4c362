"""The profile section: a request for a profile of the next steps, and the profiles of the run."""

from collections.abc import Mapping, Sequence
from functools import partial

import streamlit as st

from dashboard import state
from dashboard.commands import request_profile
from dashboard.components import heading, plain
from dashboard.controls import command_button, disabled_reason
from dashboard.data import profiles as profile_data
from dashboard.data import runs as run_data
from dashboard.data.profiles import DEFAULT_STEPS, MOST_STEPS, ProfileRequest
from dashboard.data.runs import RunView
from dashboard.views.profile_parts import show
from harness import words
from harness.errors import LogError
from harness.records.profile import ProfileRow
from harness.records.run import CommandState

# Period of checks for a result while a request is pending.
_WAIT_S = 0.5
_NOBODY = 0
_HELP = (
    "Runs a few steps of the live run under PyTorch's profiler. They are slower and excluded from the "
    "statistics; training continues normally afterwards."
)
_WHAT = (
    "A profile shows which operators and kernels take the time of a step, by kind of work and by module, and "
    "includes a trace for Perfetto."
)
_NONE = f"This run has no profile. {_WHAT}"
_COST = (
    "The recorded steps are slower, and training waits afterwards while the recording is processed; each "
    "profile states both. The setting profile_at takes profiles automatically."
)


def section(view: RunView) -> None:
    """Draw the button, the result of the last request, and the selected profile."""
    if view.run is None:
        return
    try:
        profiles = profile_data.read_all(view.folder)
    except LogError as error:
        st.error(plain(str(error)), icon=":material/database_off:")
        return
    with st.container(border=True, key="profile"):
        request = profile_data.latest_request(view)
        _bar(view, request)
        _failure(profiles, request)
        choices = [row for row in profiles if row.steps]
        if choices:
            _chosen(view, choices)
        else:
            st.caption(
                f"No profile of this run yet. {_WHAT} {_COST}" if disabled_reason(view) is None else _NONE
            )


def _bar(view: RunView, request: ProfileRequest | None) -> None:
    reason = disabled_reason(view)
    waits = request is not None and request.state is CommandState.QUEUED
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="profile_bar"):
        heading("Profile", help=_HELP)
        if request is not None and waits:
            st.fragment(_progress, run_every=_WAIT_S)(view)
        elif request is not None:
            _answer(request)
        st.space("stretch")
        _options(reason)
        command_button(
            "profile_now",
            "Profile now",
            ":material/timer:",
            "Records the next steps.",
            reason or ("A profile is in progress." if waits else None),
            on_click=partial(request_profile, view.folder),
            is_primary=True,
        )


def _options(reason: str | None) -> None:
    """Draw the recording options in a popover whose label lists the selected ones."""
    steps = state.widget_value(state.Key.PROFILE_STEPS) or DEFAULT_STEPS
    extra = [
        name
        for name, key in (("memory", state.Key.PROFILE_MEMORY), ("stacks", state.Key.PROFILE_STACKS))
        if state.widget_value(key)
    ]
    label = " · ".join([words.plural(steps, "step"), *extra])
    with st.popover(label, icon=":material/tune:", key="profile_options", disabled=reason is not None):
        st.slider(
            "Steps to record",
            1,
            MOST_STEPS,
            steps,
            key=state.Key.PROFILE_STEPS,
            help="More steps average out differences between steps; the trace grows with them.",
        )
        st.toggle(
            "Memory",
            key=state.Key.PROFILE_MEMORY,
            help="Memory that each operator allocates and frees. Slows the recorded steps further.",
        )
        st.toggle(
            "Stacks",
            key=state.Key.PROFILE_STACKS,
            help="Python call stack of each operator. Slows the recorded steps the most.",
        )


def _progress(view: RunView) -> None:
    """Draw the progress of a pending request; rerun the page once it has a result."""
    request = profile_data.latest_request(run_data.read_view(view.folder))
    if request is None or request.state is not CommandState.QUEUED:
        st.rerun()
    elif request.recording is None:
        st.badge(
            "queued",
            icon=":material/schedule:",
            color="blue",
            help="Starts after the snapshot that is being taken."
            if request.is_after_snapshot
            else "Starts in steady state: some steps after a start or a change.",
        )
    else:
        first, last = request.recording
        span = f"steps {words.count(first)}–{words.count(last)}"
        text = f"recording {span}" if last > first else f"recording step {words.count(first)}"
        st.badge(text, icon=":material/radio_button_checked:", color="orange")


def _answer(request: ProfileRequest) -> None:
    if request.state is CommandState.APPLIED:
        st.badge(f"done at step {words.count(request.step)}", icon=":material/check:", color="green")
    elif request.state is CommandState.EXPIRED:
        st.badge("not taken", icon=":material/timer_off:", color="gray", help=plain(request.message))
    else:
        st.badge("unavailable", icon=":material/block:", color="red", help=plain(request.message))


def _failure(profiles: Sequence[ProfileRow], request: ProfileRequest | None) -> None:
    """Draw the reason if the newest profile failed."""
    message = ""
    if profiles and not profiles[-1].steps:
        message = profiles[-1].message or ""
    elif request is not None and request.state is CommandState.REJECTED:
        newest = profiles[-1].first_step if profiles else 0
        message = request.message if (request.step or 0) >= newest else ""
    if message:
        st.warning(plain(message), icon=":material/timer_off:")


def _chosen(view: RunView, choices: Sequence[ProfileRow]) -> None:
    """Draw the select boxes for a profile and for one to compare it with, and their contents."""
    names = {row.profile_id: profile_data.name(view, row) for row in choices}
    rows = {row.profile_id: row for row in choices}
    newest = choices[-1].profile_id
    row, other = rows[newest], None
    if len(choices) > 1:
        with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="profile_choice"):
            # A new profile makes a new widget, which selects it.
            picked = _choice("Profile", list(reversed(names)), f"profile_pick_{newest}", names)
            others = [_NOBODY, *(key for key in reversed(names) if key != picked)]
            against = _choice("Compare with", others, f"profile_beside_{newest}_{picked}", names)
        row, other = rows[picked], rows.get(against)
    try:
        profile = profile_data.read(view.folder, row)
        baseline = None if other is None else profile_data.read(view.folder, other)
        show(view, profile, baseline)
    except LogError as error:
        st.error(plain(str(error)), icon=":material/database_off:")


def _choice(label: str, keys: Sequence[int], key: str, names: Mapping[int, str]) -> int:
    picked_key: int = st.selectbox(
        label, keys, key=key, format_func=lambda each: names.get(each, "nothing"), width=330
    )
    return picked_key
