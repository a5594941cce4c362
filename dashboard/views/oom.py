"""Why memory ran out: each report, readable, and as text to paste elsewhere."""

from collections.abc import Sequence

import streamlit as st

from dashboard.charts import holders
from dashboard.components import plain, table
from dashboard.data.memory import Report
from harness import words
from harness.analysis.oom import text as oom_text
from harness.analysis.oom.budget import budget
from harness.analysis.oom.report import Asked, OomFacts, OomReport

_STEP_COLUMNS = {
    "step": st.column_config.NumberColumn("Step", format="localized"),
    "step_ms": st.column_config.NumberColumn("Time, ms", format="%.1f", help="How long the step took."),
    "allocated_mib": st.column_config.NumberColumn(
        "Allocated, MiB", format="%.1f", help="In tensors at the step's end."
    ),
    "peak_mib": st.column_config.NumberColumn("Peak, MiB", format="%.1f", help="The most at once within it."),
    "reserved_mib": st.column_config.NumberColumn(
        "Reserved, MiB", format="%.1f", help="Held by the allocator."
    ),
}
_HOLDER_COLUMNS = {
    "held_mib": st.column_config.NumberColumn("Held, MiB", format="%.2f", help="When it failed."),
    "what": st.column_config.TextColumn("What", help="A kind of memory, or the line that allocated it."),
    "where": st.column_config.TextColumn("Where", help="The part of the model it belongs to."),
    "blocks": st.column_config.NumberColumn("Tensors", format="localized", help="How many, where known."),
}


def reports(found: Sequence[Report], run: str) -> None:
    """Every report, the newest first; the newest lies open."""
    for at, report in enumerate(reversed(found)):
        step = words.count(report.row.step)
        with st.expander(
            f"Why memory ran out in step {step}", icon=":material/memory:", expanded=at == 0, key=f"oom_{at}"
        ):
            if report.told is None:
                st.caption("This report was written by another version of Stepscope and cannot be read here.")
                st.text(report.row.outcome)
            else:
                _report(report.told, f"{run}-out-of-memory-step-{report.row.step}.txt", at)


def _report(report: OomReport, file: str, at: int) -> None:
    facts = report.facts
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.badge(
            report.verdict.value,
            icon=":material/troubleshoot:",
            color="red",
            help="What memory ran out for, after others were ruled out.",
        )
        st.text(report.why)
        st.space("stretch")
        st.download_button(
            "Report as text",
            data=oom_text.render(report),
            file_name=file,
            mime="text/plain",
            key=f"download_oom_{at}",
            icon=":material/download:",
            on_click="ignore",
            help="The whole report in plain text, to paste into an issue or a chat.",
        )
    if report.outcome:
        st.caption(f":material/flag: {plain(report.outcome)}")
    left, right = st.columns(2, gap="large")
    with left:
        _asked(facts.asked, facts)
    with right:
        _held(facts)
    _because(report)
    _tables(facts, at)


def _asked(asked: Asked, facts: OomFacts) -> None:
    st.markdown("**What was asked for**")
    size = words.size(asked.most_bytes)
    if asked.least_bytes != asked.most_bytes:
        size = f"{words.size(asked.least_bytes)} to {size}"
    module = words.NOT_AVAILABLE
    if asked.module is not None:
        module = f"{asked.module or 'the model itself'} ({asked.module_kind or words.NOT_AVAILABLE})"
    checkpointing = "checkpointing on" if facts.checkpointing else "checkpointing off"
    lines = [
        ("Size", size, "What one tensor needed. CUDA's error names the segment it would have taken instead."),
        ("While", asked.phase.value, "The part of the step under way."),
        ("Module", module, "The innermost part of the model at work."),
        ("Line", asked.site or words.NOT_AVAILABLE, "The innermost line of code outside torch."),
        (
            "Settings",
            f"batch {words.count(facts.batch_size)}, AMP {facts.amp}, {checkpointing}",
            "The settings in effect when it failed.",
        ),
    ]
    _figures(lines)
    if asked.code:
        st.code(asked.code, language="python", wrap_lines=True)
    if asked.note:
        st.caption(plain(asked.note))


def _held(facts: OomFacts) -> None:
    st.markdown("**What there was**")
    held = facts.held
    limit = "Limit (its cap)" if held.is_capped else "Limit (the device)"
    parts = budget(held, facts.device)
    if parts:
        st.caption(
            f"{words.size(held.limit_bytes)} = "
            + " + ".join(f"{_signed(part.size_bytes)} {plain(part.name)}" for part in parts)
        )
    _figures(
        [
            (limit, words.size(held.limit_bytes), "The most this run could have."),
            ("Allocated", words.size(held.allocated_bytes), "In live tensors when it failed."),
            ("Reserved", words.size(held.reserved_bytes), "Held by the allocator, tensors included."),
            (
                "Unused",
                words.size(held.unused_bytes),
                "Of reserved, in no tensor: fragmentation if it is much.",
            ),
            ("Largest free block", words.size(held.largest_free_bytes), "What fits in one piece."),
            ("Free on the device", words.size(held.device_free_bytes), "Held by nobody."),
            ("Other processes", words.size(held.others_bytes), "Held by others on the same device."),
        ]
    )


def _signed(size_bytes: int) -> str:
    return words.size(size_bytes) if size_bytes >= 0 else f"−{words.size(-size_bytes)}"


def _figures(lines: Sequence[tuple[str, str, str]]) -> None:
    with st.container(gap="xxsmall"):
        for name, value, meaning in lines:
            with st.container(horizontal=True, gap="small", vertical_alignment="center"):
                with st.container(width=150):
                    st.caption(name, help=meaning)
                st.text(value, width="stretch")


def _because(report: OomReport) -> None:
    if report.evidence:
        st.markdown("**What speaks for it**")
        st.markdown("\n".join(f"- {plain(line)}" for line in report.evidence))
    if report.counterfactuals:
        st.markdown(
            "**What would have been otherwise**",
            help="Only what this run or a prediction gives evidence for; each says what it rests on.",
        )
        st.markdown(
            "\n".join(f"- {plain(one.text)} :gray[({plain(one.basis)})]" for one in report.counterfactuals)
        )


def _tables(facts: OomFacts, at: int) -> None:
    lines = holders.oom_lines(facts)
    left, right = st.columns(2, gap="large")
    with left:
        st.markdown("**Top holders**", help="What held the most memory when it failed.")
        if lines:
            table(
                lines,
                height=240,
                key=f"oom_holders_{at}",
                columns=_HOLDER_COLUMNS,
                alt="What held the most memory when it failed.",
            )
        else:
            st.caption("n/a: nothing was known of single holders.")
    with right:
        st.markdown("**The last steps**", help="The steps before the one that failed, the newest first.")
        if facts.steps:
            table(
                holders.step_lines(facts),
                height=240,
                key=f"oom_steps_{at}",
                columns=_STEP_COLUMNS,
                alt="Time and memory of the last steps before it failed.",
            )
        else:
            st.caption("n/a: it failed in the first step.")
