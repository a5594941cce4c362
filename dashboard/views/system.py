"""The System page: live metrics of this machine, its devices, and the doctor's checks."""

import streamlit as st

from dashboard.components import heading, page_title, plain
from dashboard.data.doctor import doctor_run, restart_doctor
from dashboard.data.runs import read_only
from dashboard.views.alert_deliveries import deliveries_panel
from dashboard.views.machine import machine_now
from harness import words
from harness.device.doctor.report import Check, DeviceReport, DoctorReport, Status
from harness.records.run import DeviceFacts, DeviceKind

_POLL_S = 0.5
_BADGES = {
    Status.OK: ("green", ":material/check_circle:", "ok"),
    Status.WARNING: ("orange", ":material/warning:", "note"),
    Status.PROBLEM: ("red", ":material/error:", "problem"),
    Status.UNAVAILABLE: ("gray", ":material/do_not_disturb_on:", "unavailable"),
}


def page() -> None:
    """Draw the page."""
    with st.container(horizontal=True, vertical_alignment="center"):
        page_title("System")
        st.space("stretch")
        is_off = read_only() is not None
        if st.button("Check again", key="examine_again", icon=":material/refresh:", disabled=is_off):
            restart_doctor()
    deliveries_panel()
    machine_now()
    doctor = doctor_run()
    if not doctor.is_done:
        st.fragment(_wait, run_every=_POLL_S)()
        return
    if doctor.problem is not None:
        st.error(plain(doctor.problem), icon=":material/error:")
    if doctor.report is not None:
        _report(doctor.report)


def _wait() -> None:
    st.info("Checking this machine…", icon=":material/hourglass_top:")
    if doctor_run().is_done:
        st.rerun()


def _report(report: DoctorReport) -> None:
    heading("Devices")
    for at, device in enumerate(report.devices):
        _device(device, at)
    heading("Checks")
    with st.container(border=True, key="checks", gap="xsmall"):
        for check in report.checks:
            _check(check)


def _device(device: DeviceReport, at: int) -> None:
    facts = device.facts
    with st.container(border=True, key=f"device_{at}"):
        with st.container(horizontal=True, vertical_alignment="center"):
            heading(plain(facts.name), level=3)
            st.badge(plain(facts.torch_name), color="gray")
        with st.container(horizontal=True, gap="medium"):
            for label, value in _facts(facts, device.tensor_cores):
                with st.container(width="content", gap=None):
                    st.caption(label)
                    st.text(value)
        for limit in device.limits:
            st.caption(f":material/info: {plain(limit)}")


def _facts(facts: DeviceFacts, tensor_cores: str | None) -> list[tuple[str, str]]:
    is_cpu = facts.kind is DeviceKind.CPU
    rows = [
        ("Memory", words.size(facts.memory_bytes)),
        ("Cores" if is_cpu else "Multiprocessors", words.count(facts.multiprocessors)),
        ("AMP", ", ".join(facts.amp_modes)),
    ]
    if not is_cpu:
        limit = words.NOT_AVAILABLE if facts.power_limit_w is None else f"{facts.power_limit_w:.0f} W"
        if facts.capability is not None:  # NVIDIA's: AMD, Intel and Apple have none, nor tensor cores by it.
            capability = ".".join(map(str, facts.capability))
            rows += [("Compute capability", capability), ("Tensor cores", tensor_cores or "none")]
        rows += [
            ("Power limit", limit),
            ("UUID", facts.uuid or words.NOT_AVAILABLE),
        ]
    able = [
        name
        for name, can in (
            ("pinned memory", facts.can_pin),
            ("empty_cache", facts.can_trim),
            ("memory cap", facts.can_cap),
            ("torch.compile", facts.can_compile),
        )
        if can
    ]
    return [*rows, ("Supports", ", ".join(able) or "no optional features")]


def _check(check: Check) -> None:
    color, icon, word = _BADGES[check.status]
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.badge(word, icon=icon, color=color, width=110)  # type: ignore[arg-type]  # a Literal
        with st.container(width=190):
            st.text(check.name)
        with st.container(width="stretch", gap=None):
            st.text(check.value)
            if check.advice:
                st.caption(plain(check.advice))
