"""The live part of the System page: findings, then metrics of every GPU and the host, every second."""

from collections.abc import Sequence

import streamlit as st

from dashboard import canvas, state
from dashboard.charts.machine_cards import gpu_cards, host_cards
from dashboard.components import heading, plain
from dashboard.data.live_runs import LiveRun, Users, cpu_facts, disk_free_bytes, facts, live_runs, users_of
from dashboard.data.machine_watch import machine_watch
from dashboard.views.machine_tables import missing_lines, run_tables, throttle_table, user_table
from harness import words
from harness.analysis.machine.notices import Tone, calm_sentence, machine_notices
from harness.device.machine import GpuSample, MachineHistory, MachineSample
from harness.errors import HomeError

_TICK_S = 1.0
_BOXES = {
    Tone.BAD: (st.error, ":material/error:"),
    Tone.WARNING: (st.warning, ":material/warning:"),
    Tone.NOTE: (st.info, ":material/info:"),
}


def machine_now() -> None:
    """Draw the machine's current metrics, every second."""
    st.fragment(_now, run_every=_TICK_S)()


def _runs() -> list[LiveRun]:
    """Return the active runs; draw the reason where the home cannot be read."""
    try:
        return live_runs()
    except HomeError as error:
        st.error(plain(str(error)), icon=":material/error:")
        return []


def _now() -> None:
    machine = machine_watch().read()
    if not machine.moments:
        st.info("Taking a first sample of this machine…", icon=":material/hourglass_top:")
        return
    newest = machine.moments[-1]
    runs = _runs()
    users = {uuid: users_of(uuid, newest.gpus.get(uuid), runs) for uuid, _ in machine.gpus}
    _verdict(machine, newest, users)
    for uuid, name in machine.gpus:
        _gpu(uuid, name, machine.moments, users[uuid])
    _host(machine)
    if runs:
        run_tables(runs)


def _verdict(machine: MachineHistory, newest: MachineSample, users: dict[str, Users]) -> None:
    """Draw the findings, the most severe first."""
    gpus = [facts(name, newest.gpus.get(uuid), users[uuid]) for uuid, name in machine.gpus]
    host = newest.host
    cpu, disk = cpu_facts(machine.moments), disk_free_bytes()
    results = machine_notices(gpus, host.ram_used_bytes, host.ram_total_bytes, cpu, disk)
    if results:
        box, icon = _BOXES[results[0].tone]
        box("  \n".join(plain(finding.sentence) for finding in results), icon=icon)
    else:
        st.success(plain(calm_sentence(gpus)), icon=":material/check_circle:")
    for warning in machine.warnings:
        st.warning(plain(warning), icon=":material/link_off:")


def _gpu(uuid: str, name: str, moments: Sequence[MachineSample], used: Users) -> None:
    newest = moments[-1].gpus.get(uuid)
    with st.container(key=f"gpu_{uuid}", gap="small"):
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            heading(plain(name), level=3)
            st.badge(plain(uuid[:12]), color="gray", help=plain(uuid))
            for run in used.runs:
                st.page_link(
                    state.page("live"),
                    label=plain(run.name),
                    icon=":material/monitoring:",
                    query_params=state.run_query(run.run_id),
                )
        if newest is None:
            st.warning("This GPU does not answer.", icon=":material/link_off:")
            return
        canvas.live_cards(gpu_cards(uuid, moments), key=f"cards_{uuid}")
        _further(newest)
        user_table(uuid, used)
        throttle_table(uuid, moments)
        missing_lines(newest)


def _further(now: GpuSample) -> None:
    details, sample = now.details, now.sample
    ecc = words.NOT_AVAILABLE
    if details.ecc_corrected is not None:
        corrected, uncorrected = words.count(details.ecc_corrected), words.count(details.ecc_uncorrected)
        ecc = f"{corrected} corrected, {uncorrected} uncorrected"
    clock = words.NOT_AVAILABLE if sample.memory_clock_mhz is None else f"{sample.memory_clock_mhz:,.0f} MHz"
    rows = [
        ("Energy since the driver was loaded", words.energy(details.energy_j)),
        ("ECC errors since then", ecc),
        ("Occupancy", words.percent(details.sm_occupancy_pct)),
        ("Memory clock", clock),
        ("Memory utilization", words.percent(sample.memory_util_pct)),
    ]
    with st.container(horizontal=True, gap="medium"):
        for label, value in rows:
            with st.container(width="content", gap=None):
                st.caption(label)
                st.text(value)


def _host(machine: MachineHistory) -> None:
    with st.container(key="host_now", gap="small"):
        heading("This machine")
        canvas.live_cards(host_cards(machine.moments), key="cards_host")
        if machine.nvml_problem is not None:
            st.caption(f":material/info: No NVIDIA GPU detected: {plain(machine.nvml_problem)}.")
