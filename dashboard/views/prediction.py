"""Will it fit? The panel beside Start, which answers as settings change."""

from collections.abc import Mapping
from typing import Any

import streamlit as st

from dashboard import state
from dashboard.components import plain, share_bar
from dashboard.data.predictions import predictor
from dashboard.starting import Base
from harness import words
from harness.config import change
from harness.prediction import Advice, Answer, Impossible, Prediction, Remedy, Target, fits, limit_of
from harness.records import DeviceFacts
from harness.settings import Settings

_POLL_S = 0.4
_MOST_REMEDIES = 4

Badge = tuple[str, str, str, str | None]
"""Its label, colour, icon and what it means."""

_VERDICTS: dict[bool | None, Badge] = {
    True: ("fits", "green", ":material/check_circle:", "The predicted peak lies below the limit."),
    False: ("does not fit", "red", ":material/block:", "The predicted peak lies above the limit."),
    None: (
        "too close to say",
        "orange",
        ":material/help:",
        "The predicted peak comes so near to the limit that what the context takes decides, or the limit "
        "is not known.",
    ),
}


def prediction_panel(base: Base, settings: Settings, facts: DeviceFacts | None) -> None:
    """What a run with `settings` would need on this device, and what would make it fit. Computed beside the
    page, which is drawn again as answers come in. `facts` None: the machine is still being looked at."""
    if facts is None:
        with st.container(border=True, key="prediction", gap="xsmall"):
            _head(("looking at this machine…", "gray", ":material/hourglass_top:", None))
        return
    target = Target.of(facts)
    is_done = _answers(settings, target)[2]
    st.fragment(_panel, run_every=None if is_done else _POLL_S)(base, settings, target, is_done)


def _answers(settings: Settings, target: Target) -> tuple[Answer | None, Advice | None, bool]:
    """The prediction, the advice, and whether neither is still being computed."""
    answer = predictor().ask(settings, target)
    advice = predictor().advise(settings, target) if isinstance(answer, Prediction) else None
    return answer, advice, isinstance(answer, Impossible) or advice is not None


def _panel(base: Base, settings: Settings, target: Target, was_done: bool) -> None:
    answer, advice, is_done = _answers(settings, target)
    if is_done and not was_done:
        st.rerun()
    with st.container(border=True, key="prediction", gap="xsmall"):
        _verdict(answer, settings, target)
        if isinstance(answer, Impossible):
            st.caption(plain(answer.reason))
        elif answer is None:
            st.caption("Takes two steps on tensors that hold no data; nothing is allocated on the device.")
        else:
            _peak(answer, settings, target)
            _advice(base, settings, advice)
            _left_out(answer)


def _verdict(answer: Answer | None, settings: Settings, target: Target) -> None:
    if answer is None:
        _head(("predicting…", "gray", ":material/hourglass_top:", None))
    elif isinstance(answer, Impossible):
        _head(("cannot be predicted", "gray", ":material/help:", None))
    else:
        _head(_VERDICTS[fits(answer, settings, target)])


def _head(badge: Badge) -> None:
    label, color, icon, meaning = badge
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.markdown("**Will it fit?**")
        st.badge(label, icon=icon, color=color, help=meaning)  # type: ignore[arg-type]  # a Literal


def _peak(prediction: Prediction, settings: Settings, target: Target) -> None:
    limit_bytes, limit_words = limit_of(settings, target)
    st.markdown(
        f"**{words.size(prediction.peak_allocated_bytes)}** at the peak, in {plain(prediction.phase)}",
        help="The most that tensors and workspaces are expected to hold at once from the second step on, and "
        "the phase in which that is.",
    )
    share_bar([(part.category.value, part.size_bytes) for part in prediction.parts], limit_bytes or 0)
    context = words.size(prediction.context_bytes) if prediction.context_bytes is not None else None
    details = [f"held against {limit_words}" if limit_bytes is not None else f"there is {limit_words}"]
    if prediction.peak_reserved_bytes is not None:
        details.append(f"the allocator would reserve {words.size(prediction.peak_reserved_bytes)}")
    if context is not None:
        details.append(f"{context} more for the context")
    st.caption(plain("; ".join(details)))


def _advice(base: Base, settings: Settings, advice: Advice | None) -> None:
    if advice is None:
        st.caption("Looking for the largest batch that fits, and for what would save memory…")
        return
    if advice.largest_batch is not None and advice.largest_batch != settings.batch_size:
        _largest(base, advice.largest_batch)
    if not advice.remedies:
        return
    if advice.fits:
        with st.expander("What would save memory", key="prediction_remedies"):
            _remedies(base, advice)
    else:
        st.caption("What would save memory, each on its own:")
        _remedies(base, advice)


def _remedies(base: Base, advice: Advice) -> None:
    with st.container(gap="xxsmall"):
        for at, remedy in enumerate(advice.remedies[:_MOST_REMEDIES]):
            _remedy(base, remedy, at)


def _largest(base: Base, batch: int) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if batch == 0:
            st.markdown("Not even a batch of **1** fits.")
            return
        st.markdown(
            f"Largest batch that fits: **{words.count(batch)}**", help="Found by predicting other batches."
        )
        _use_it(base, {"batch_size": batch}, key="use_largest_batch")


def _remedy(base: Base, remedy: Remedy, at: int) -> None:
    color = {True: "green", False: "gray", None: "blue"}[remedy.fits]
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.badge(
            f"−{words.size(remedy.saved_bytes)}",
            color=color,  # type: ignore[arg-type]  # a Literal
            help=plain(
                f"Then {words.size(remedy.peak_bytes)} at the peak"
                f"{', which fits' if remedy.fits else ''}; predicted as well, not estimated from this."
            ),
        )
        st.text(f"{remedy.label[0].upper()}{remedy.label[1:]}", width="content")
        _use_it(base, remedy.changes, key=f"use_remedy_{at}")


def _use_it(base: Base, changes: Mapping[str, Any], key: str) -> None:
    """A button that puts `changes` into the form. The form stands outside the panel, which alone is drawn
    again after a click within it: so the whole page is."""
    if st.button("Use it", key=key, type="tertiary", on_click=_apply, args=(base, changes)):
        st.rerun()


def _apply(base: Base, changes: Mapping[str, Any]) -> None:
    """Put a remedy's values into the form, as the types its widgets hold."""
    typed = change(Settings(), changes)
    for name in changes:
        state.put(base.key(name), getattr(typed, name))


def _left_out(prediction: Prediction) -> None:
    if prediction.notes or prediction.context_note:
        with st.expander("What is not in it", key="prediction_notes"):
            for note in filter(None, (prediction.context_note, *prediction.notes)):
                st.caption(plain(note))
