"""Profile now: the next steps of a live run under PyTorch's profiler, and what the profiles so far say."""

from collections.abc import Mapping, Sequence

import streamlit as st

from dashboard import state
from dashboard.asking import ask_profile
from dashboard.components import plain
from dashboard.controls import why_not
from dashboard.data import profiles as profile_data
from dashboard.data import runs as run_data
from dashboard.data.profiles import DEFAULT_STEPS, MOST_STEPS, Asked
from dashboard.data.runs import Look
from dashboard.views.profile_parts import show
from harness import words
from harness.errors import LogError
from harness.profile_records import ProfileRow
from harness.records import CommandState

_WAIT_S = 0.5
"""How often it is looked whether a request was answered, while one waits."""
_NOBODY = 0
_HELP = (
    "A few steps of the live run under PyTorch's profiler. They are slower than others, and left out of the "
    "statistics; training goes on as before when they are done."
)
_WHAT = (
    "One tells which operators and kernels take the time of a step, by kind of work and by module, and keeps "
    "a trace for Perfetto."
)
_NONE = f"No profile was taken of this run. {_WHAT}"
_COST = (
    "It costs the slower steps that are recorded, and a wait after them while what was recorded is read: "
    "both are stated with each profile. The setting profile_at takes them by itself."
)


def section(seen: Look) -> None:
    """The button, what became of the last request, and the profile chosen."""
    if seen.run is None:
        return
    try:
        taken = profile_data.taken(seen.folder)
    except LogError as error:
        st.error(plain(str(error)), icon=":material/database_off:")
        return
    with st.container(border=True, key="profile"):
        asked = profile_data.asked(seen)
        _bar(seen, asked)
        _failure(taken, asked)
        told = [row for row in taken if row.steps]
        if told:
            _chosen(seen, told)
        else:
            st.caption(f"No profile of this run yet. {_WHAT} {_COST}" if why_not(seen) is None else _NONE)


def _bar(seen: Look, asked: Asked | None) -> None:
    reason = why_not(seen)
    waits = asked is not None and asked.state is CommandState.QUEUED
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="profile_bar"):
        st.markdown("**Profile**", help=_HELP, width="content")
        if asked is not None and waits:
            st.fragment(_progress, run_every=_WAIT_S)(seen)
        elif asked is not None:
            _answer(asked)
        st.space("stretch")
        _options(reason)
        st.button(
            "Profile now",
            key="profile_now",
            type="primary",
            icon=":material/timer:",
            disabled=reason is not None or waits,
            help=plain(reason or ("One is being taken." if waits else "Records the next steps.")),
            on_click=ask_profile,
            args=(seen.folder,),
        )


def _options(reason: str | None) -> None:
    """What to record; the drawer's label says what is chosen."""
    steps = state.widget_value(state.Key.PROFILE_STEPS) or DEFAULT_STEPS
    extra = [
        name
        for name, key in (("memory", state.Key.PROFILE_MEMORY), ("stacks", state.Key.PROFILE_STACKS))
        if state.widget_value(key)
    ]
    label = " · ".join([words.plural(steps, "step"), *extra])
    with st.popover(label, icon=":material/tune:", key="profile_options", disabled=reason is not None):
        state.put(state.Key.PROFILE_STEPS, steps)
        st.slider(
            "Steps to record",
            1,
            MOST_STEPS,
            key=state.Key.PROFILE_STEPS,
            help="More steps even out what differs from step to step; the trace grows with them.",
        )
        st.toggle(
            "Memory",
            key=state.Key.PROFILE_MEMORY,
            help="What each operator allocates and frees. Recording it slows the steps further.",
        )
        st.toggle(
            "Stacks",
            key=state.Key.PROFILE_STACKS,
            help="The lines of Python that called each operator. Slows the steps the most.",
        )


def _progress(seen: Look) -> None:
    """What is being done about a request that has no answer yet; the whole page anew once it has one."""
    asked = profile_data.asked(run_data.look(seen.folder))
    if asked is None or asked.state is not CommandState.QUEUED:
        st.rerun()
    elif asked.recording is None:
        st.badge(
            "queued",
            icon=":material/schedule:",
            color="blue",
            help="It begins once the run has settled: some steps after a start or a change.",
        )
    else:
        first, last = asked.recording
        span = f"steps {words.count(first)}–{words.count(last)}"
        text = f"recording {span}" if last > first else f"recording step {words.count(first)}"
        st.badge(text, icon=":material/radio_button_checked:", color="orange")


def _answer(asked: Asked) -> None:
    if asked.state is CommandState.APPLIED:
        st.badge(f"done at step {words.count(asked.step)}", icon=":material/check:", color="green")
    elif asked.state is CommandState.EXPIRED:
        st.badge("not taken", icon=":material/timer_off:", color="gray", help=plain(asked.message))
    else:
        st.badge("unavailable", icon=":material/block:", color="red", help=plain(asked.message))


def _failure(taken: Sequence[ProfileRow], asked: Asked | None) -> None:
    """Why the newest profile could not be taken, where that is so."""
    message = ""
    if taken and not taken[-1].steps:
        message = taken[-1].message or ""
    elif asked is not None and asked.state is CommandState.REJECTED:
        newest = taken[-1].first_step if taken else 0
        message = asked.message if (asked.step or 0) >= newest else ""
    if message:
        st.warning(plain(message), icon=":material/timer_off:")


def _chosen(seen: Look, told: Sequence[ProfileRow]) -> None:
    """The choice of a profile and of one to compare it with, and what they say."""
    names = {row.profile_id: profile_data.name(seen, row) for row in told}
    rows = {row.profile_id: row for row in told}
    newest = told[-1].profile_id
    row, other = rows[newest], None
    if len(told) > 1:
        with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="profile_choice"):
            # Another newest profile is another widget, which begins with it.
            picked = _choice("Profile", list(reversed(names)), f"profile_pick_{newest}", names)
            others = [_NOBODY, *(key for key in reversed(names) if key != picked)]
            against = _choice("Beside", others, f"profile_beside_{newest}_{picked}", names)
        row, other = rows[picked], rows.get(against)
    try:
        profile = profile_data.read(seen.folder, row)
        beside = None if other is None else profile_data.read(seen.folder, other)
        show(seen, profile, beside)
    except LogError as error:
        st.error(plain(str(error)), icon=":material/database_off:")


def _choice(label: str, keys: Sequence[int], key: str, names: Mapping[int, str]) -> int:
    found: int = st.selectbox(
        label, keys, key=key, format_func=lambda each: names.get(each, "nothing"), width=330
    )
    return found
