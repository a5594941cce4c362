"""Memory predictions: the panel of the form for a new run, updated as settings change, and the panel that
compares a run with its prediction."""

from collections.abc import Mapping
from typing import Any

import streamlit as st

from dashboard import state
from dashboard.callbacks import to_the_end
from dashboard.components import heading, plain, share_bar
from dashboard.data import predictions
from dashboard.data.doctor import doctor_run
from dashboard.data.runs import RunView, read_only
from dashboard.new_run import Base
from harness import words
from harness.predict.answer import (
    Advice,
    Answer,
    Impossible,
    Prediction,
    Remedy,
    Target,
    fit_sentence,
    fits,
    is_cap_too_small,
    limit_of,
    off_by,
)
from harness.records.run import DeviceFacts
from harness.settings import Settings
from harness.settings.spec import change, change_title

_WILL_IT_FIT, _PREDICTED = "Will it fit?", "Predicted and measured"
_NOT_PREDICTED = (
    "n/a: a script can do anything between two steps, so its memory is measured, not predicted. To predict "
    "a model before it runs, train it in Stepscope's own loop: `stepscope run my_model.py:build`."
)
_POLL_S = 0.4
_MOST_REMEDIES = 4

# Label, color, icon and meaning.
Badge = tuple[str, str, str, str | None]

_VERDICTS: dict[bool | None, Badge] = {
    True: ("fits", "green", ":material/check_circle:", "The predicted peak is below the limit."),
    False: ("does not fit", "red", ":material/block:", "The predicted peak is above the limit."),
    None: (
        "too close to tell",
        "orange",
        ":material/help:",
        "The predicted peak is so close to the limit that the size of the context decides, or the limit is "
        "unknown.",
    ),
}

_UNKNOWN_DEVICE: Badge = (
    "n/a",
    "gray",
    ":material/help:",
    "The check of this machine did not find this device.",
)


def prediction_panel(base: Base, settings: Settings, facts: DeviceFacts | None) -> None:
    """Draw the predicted memory of a run with `settings` on this device, and changes that make it fit. The
    prediction runs in the background and the panel is redrawn with its results. `facts` is None while the
    machine is being checked, and where that failed."""
    if facts is None:
        checking: Badge = ("checking this machine…", "gray", ":material/hourglass_top:", None)
        with st.container(border=True, key="prediction", gap="xsmall"):
            _head(_WILL_IT_FIT, _UNKNOWN_DEVICE if doctor_run().is_done else checking)
        return
    _draw(base, settings, Target.of(facts), None)


def run_panel(view: RunView) -> None:
    """Draw the prediction for the settings in effect, the measured peak, and ways to save memory. While a run
    is active, a prediction is computed on request only."""
    if view.settings is None or view.device is None or (view.run is not None and view.run.simulated):
        return
    settings = view.settings.complete
    if settings is None:
        with st.container(border=True, key="prediction", gap="xsmall"):
            heading(_PREDICTED)
            if (sentence := predictions.refit_sentence(view)) is not None:
                st.markdown(plain(sentence))
            st.caption(_NOT_PREDICTED)
        return
    is_cached = predictions.cached_prediction(settings, view.device) is not None
    if not is_cached and read_only() is not None:
        return
    if is_cached or view.status.state.is_over or predictions.is_requested(view.folder.run_id):
        _draw(None, settings, Target.of(view.device), predictions.measured_peak(view))
        return
    with st.container(border=True, key="prediction", gap="xsmall"):
        heading(_PREDICTED)
        st.caption("No prediction for these settings yet. Computing one uses the CPU for some seconds.")
        st.button(
            "Predict",
            key="predict",
            on_click=to_the_end(predictions.request_prediction),
            args=(view.folder.run_id,),
        )


def _draw(base: Base | None, settings: Settings, target: Target, measured_bytes: int | None) -> None:
    is_done = _answers(settings, target)[2]
    again = None if is_done else _POLL_S
    st.fragment(_panel, run_every=again)(base, settings, target, measured_bytes, is_done)


def _answers(settings: Settings, target: Target) -> tuple[Answer | None, Advice | None, bool]:
    """Return the prediction, the advice, and whether both are complete."""
    predictor = predictions.predictor()
    answer = predictor.request(settings, target)
    advice = predictor.advise(settings, target) if isinstance(answer, Prediction) else None
    return answer, advice, isinstance(answer, Impossible) or advice is not None


def _panel(
    base: Base | None, settings: Settings, target: Target, measured_bytes: int | None, was_done: bool
) -> None:
    answer, advice, is_done = _answers(settings, target)
    if (is_done and not was_done) or (base is not None and state.has_queued_values()):
        st.rerun()
    with st.container(border=True, key="prediction", gap="xsmall"):
        _head(_PREDICTED if base is None else _WILL_IT_FIT, _badge(answer, settings, target))
        if isinstance(answer, Impossible):
            st.caption(plain(answer.reason))
        elif answer is None:
            st.caption(
                "Runs two steps on tensors without data. For a run on the CPU each kernel also runs on "
                "zeros, in a separate process, to measure its memory."
            )
        else:
            _peak(answer, settings, target, measured_bytes)
            _advice(base, settings, advice)
            _left_out(answer, predictions.error_sentence(target))


def _badge(answer: Answer | None, settings: Settings, target: Target) -> Badge:
    if answer is None:
        return "predicting…", "gray", ":material/hourglass_top:", None
    if isinstance(answer, Impossible):
        return "cannot be predicted", "gray", ":material/help:", None
    return _VERDICTS[fits(answer, settings, target)]


def _head(title: str, badge: Badge) -> None:
    label, color, icon, meaning = badge
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        heading(title)
        st.badge(label, icon=icon, color=color, help=meaning)  # type: ignore[arg-type]  # a Literal


def _peak(prediction: Prediction, settings: Settings, target: Target, measured_bytes: int | None) -> None:
    limit_bytes, limit_words = limit_of(settings, target)
    error = off_by(prediction.peak_allocated_bytes, measured_bytes)
    measured = "" if error is None else f"; measured **{words.size(measured_bytes)}**, prediction {error}"
    peak = words.size(prediction.peak_allocated_bytes)
    st.markdown(
        f"**{peak}** at the peak, in {plain(prediction.phase)}{measured}",
        help="The highest memory use expected of tensors and workspaces from the second step on, and the "
        "phase in which it occurs.",
    )
    share_bar([(part.category.value, part.size_bytes) for part in prediction.parts], limit_bytes or 0)
    context = words.size(prediction.context_bytes) if prediction.context_bytes is not None else None
    details = [f"compared with {limit_words}" if limit_bytes is not None else f"there is {limit_words}"]
    if prediction.peak_reserved_bytes is not None:
        details.append(f"the allocator would reserve {words.size(prediction.peak_reserved_bytes)}")
    if context is not None:
        details.append(f"plus {context} for the context")
    st.caption(plain("; ".join(details)))
    if is_cap_too_small(prediction, settings, target):
        st.markdown(plain(fit_sentence(prediction, settings, target)))


def _advice(base: Base | None, settings: Settings, advice: Advice | None) -> None:
    if advice is None:
        st.caption("Searching for the largest batch size that fits and for ways to save memory…")
        return
    if advice.largest_batch is not None and advice.largest_batch != settings.batch_size:
        _largest(base, advice.largest_batch)
    if not advice.remedies:
        return
    if advice.fits:
        with st.expander("Ways to save memory", key="prediction_remedies"):
            _remedies(base, advice)
    else:
        st.caption("Ways to save memory, each applied alone:")
        _remedies(base, advice)


def _remedies(base: Base | None, advice: Advice) -> None:
    with st.container(gap="xxsmall"):
        for at, remedy in enumerate(advice.remedies[:_MOST_REMEDIES]):
            _remedy(base, remedy, at)


def _largest(base: Base | None, batch: int) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if batch == 0:
            st.markdown("Not even a batch size of **1** fits.")
            return
        st.markdown(
            f"Largest batch size that fits: **{words.count(batch)}**",
            help="Determined by predictions with other batch sizes.",
        )
        if base is not None:
            _use_it(base, {"batch_size": batch}, key="use_largest_batch")


def _remedy(base: Base | None, remedy: Remedy, at: int) -> None:
    color = {True: "green", False: "gray", None: "blue"}[remedy.fits]
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.badge(
            f"−{words.size(remedy.saved_bytes)}",
            color=color,  # type: ignore[arg-type]  # a Literal
            help=plain(
                f"Peak {words.size(remedy.peak_bytes)}{', which fits' if remedy.fits else ''}, from a "
                "prediction with this change."
            ),
        )
        st.text(f"{remedy.label[0].upper()}{remedy.label[1:]}", width="content")
        if base is not None:
            _use_it(base, remedy.changes, key=f"use_remedy_{at}")


def _use_it(base: Base, changes: Mapping[str, Any], key: str) -> None:
    """Draw a button that puts `changes` into the form. A click in the panel reruns only its fragment; since
    the form lies outside, the panel then reruns the page."""
    title = plain(f"Use {change_title(changes)}")
    st.button(title, key=key, type="tertiary", on_click=_queue_values, args=(base, changes))


@to_the_end
def _queue_values(base: Base, changes: Mapping[str, Any]) -> None:
    """Put a remedy's values into the form, as the types of its widgets."""
    typed = change(Settings(), changes)
    state.queue_values({base.key(name): getattr(typed, name) for name in changes})


def _left_out(prediction: Prediction, error_sentence: str | None) -> None:
    notes = list(filter(None, (error_sentence, prediction.context_note, *prediction.notes)))
    if notes:
        with st.expander("Accuracy and limits of the prediction", key="prediction_notes"):
            for note in notes:
                st.caption(plain(note))
