"""Out-of-memory reports, on the page and as text to paste elsewhere."""

from collections.abc import Sequence

import streamlit as st

from dashboard.charts import allocations
from dashboard.components import count_column, decimal_column, heading, plain, size_column, table
from dashboard.data.memory import OomEntry
from harness import words
from harness.analysis.oom import text as oom_text
from harness.analysis.oom.budget import budget
from harness.analysis.oom.report import FailedRequest, OomFacts, OomReport
from harness.records.run import DeviceKind

_STEP_COLUMNS = {
    "step": count_column("Step"),
    "step_ms": decimal_column("Time, ms", 1, "Step time."),
    "allocated_bytes": size_column("Allocated", "In live tensors at the end of the step."),
    "peak_bytes": size_column("Peak", "Highest allocated memory within the step."),
    "reserved_bytes": size_column("Reserved", "Reserved by the allocator."),
}
# On the CPU a step has the memory of the heap and of the process in these columns.
_CPU_STEP_COLUMNS = _STEP_COLUMNS | {
    "allocated_bytes": size_column("Allocated", "In use on the heap at the end of the step."),
    "reserved_bytes": size_column("Process (RSS)", "Resident memory of the training process."),
}
_LIVE_HELP = (
    "The largest when the allocation failed. The kinds add up to what was allocated; modules (“part of”), "
    "variables and allocation sites are contained in them."
)
_HOLDER_COLUMNS = {
    "held_bytes": size_column("Size", "When the allocation failed."),
    "what": st.column_config.TextColumn(
        "Kind or site", help="A variable of the script, a kind of memory, or the allocation site."
    ),
    "where": st.column_config.TextColumn(
        "Module", help="The part of the model, or the frame of the variable."
    ),
    "blocks": count_column("Tensors", "Number of tensors."),
}


def reports(entries: Sequence[OomEntry], run: str) -> None:
    """Draw every report, the newest first and expanded."""
    for at, entry in enumerate(reversed(entries)):
        step = entry.row.step
        when = f"in step {words.count(step)}" if step else "before the first step"
        label = f"Why memory ran out {when}"
        with st.expander(label, icon=":material/memory:", expanded=at == 0, key=f"oom_{at}"):
            if entry.report is None:
                st.caption("This report was written by another version of Stepscope and cannot be read here.")
                st.text(entry.row.outcome)
            else:
                _report(entry.report, f"{run}-out-of-memory-step-{entry.row.step}.txt", at)


def _report(report: OomReport, file: str, at: int) -> None:
    facts = report.facts
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.badge(
            report.verdict.value,
            icon=":material/troubleshoot:",
            color="red",
            help="The cause that the evidence supports; other causes were ruled out.",
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
            help="The complete report as plain text, to paste into an issue or a chat.",
        )
    if report.outcome:
        st.caption(f":material/flag: {plain(report.outcome)}")
    left, right = st.columns(2, gap="large")
    with left:
        _request(facts.request, facts)
    with right:
        _memory(facts)
    _evidence(report)
    _tables(facts, at)


def _request(request: FailedRequest, facts: OomFacts) -> None:
    heading("Failed allocation")
    size = words.size(request.most_bytes)
    if request.least_bytes != request.most_bytes:
        size = f"{words.size(request.least_bytes)} to {size}"
    module = words.NOT_AVAILABLE
    if request.module is not None:
        module = f"{request.module or 'the model itself'} ({request.module_kind or words.NOT_AVAILABLE})"
    lines = [
        ("Size", size, "Size of the tensor. CUDA's error message states the size of the segment instead."),
        ("Phase", request.phase.value, "Phase of the step."),
        ("Module", module, "Innermost module that was executing."),
        ("Line", request.site or words.NOT_AVAILABLE, "Innermost line of code outside of torch."),
        (
            "Settings",
            facts.settings_text or words.NOT_AVAILABLE,
            "Settings in effect when the allocation failed.",
        ),
    ]
    _figures(lines)
    if request.code:
        st.code(request.code, language="python", wrap_lines=True)
    if request.script_site not in (None, request.site):
        st.caption(plain(f"Called in {request.script_site}."))
    if request.note:
        st.caption(plain(request.note))


def _memory(facts: OomFacts) -> None:
    heading("Memory at the failure")
    memory = facts.memory
    limit = f"Limit ({memory.limit_name})"
    parts = budget(facts)
    is_cpu = facts.device is DeviceKind.CPU
    reserved, whole = ("Heap", "the heap") if is_cpu else ("Reserved", "reserved memory")
    origin = "Memory that malloc's heap has from the system" if is_cpu else "Reserved by the allocator"
    allocated = "In live tensors."
    if is_cpu:
        allocated = "In use on the heap since the run began: tensors, and what else programs allocate."
    if parts:
        st.caption(
            f"{words.size(memory.limit_bytes)} = "
            + "".join(f"{_signed(part.size_bytes)} {plain(part.name)}" for part in parts).removeprefix(" + ")
        )
    _figures(
        [
            (limit, words.size(memory.limit_bytes), "Maximum memory available to this run."),
            ("Allocated", words.size(memory.allocated_bytes), allocated),
            (reserved, words.size(memory.reserved_bytes), f"{origin}, tensors included."),
            (
                "Unused",
                words.size(memory.unused_bytes),
                f"The part of {whole} that is not allocated; a large value indicates fragmentation.",
            ),
            ("Largest free block", words.size(memory.largest_free_bytes), "Largest contiguous free memory."),
            ("Free on the device", words.size(memory.device_free_bytes), "Not used by any process."),
            ("Other processes", words.size(memory.others_bytes), "Used by others on the same device."),
        ]
    )


def _signed(size_bytes: int) -> str:
    return f" {'+' if size_bytes >= 0 else '−'} {words.size(abs(size_bytes))}"


def _figures(lines: Sequence[tuple[str, str, str]]) -> None:
    with st.container(gap="xxsmall"):
        for name, value, meaning in lines:
            with st.container(horizontal=True, gap="small", vertical_alignment="center"):
                with st.container(width=150):
                    st.caption(name, help=meaning)
                st.text(value, width="stretch")


def _evidence(report: OomReport) -> None:
    if report.evidence:
        heading("Evidence")
        st.markdown("\n".join(f"- {plain(line)}" for line in report.evidence))
    if report.counterfactuals:
        heading(
            "Effect of other settings",
            help="Only with evidence from this run or from a prediction; each states its basis.",
        )
        st.markdown(
            "\n".join(f"- {plain(one.text)} :gray[({plain(one.basis)})]" for one in report.counterfactuals)
        )


def _tables(facts: OomFacts, at: int) -> None:
    lines = allocations.oom_lines(facts)
    left, right = st.columns(2, gap="large")
    with left:
        heading("Live allocations at the failure", help=_LIVE_HELP)
        if lines:
            table(
                lines,
                key=f"oom_holders_{at}",
                columns=_HOLDER_COLUMNS,
                alt="The largest live allocations when the allocation failed.",
            )
        else:
            st.caption("n/a: live allocations were not recorded.")
    with right:
        heading("Last steps", help="The steps before the failed one, newest first.")
        if facts.steps:
            table(
                allocations.step_lines(facts),
                key=f"oom_steps_{at}",
                columns=_CPU_STEP_COLUMNS if facts.device is DeviceKind.CPU else _STEP_COLUMNS,
                alt="Time and memory of the last steps before the failure.",
            )
        else:
            st.caption("n/a: it failed in the first step.")
