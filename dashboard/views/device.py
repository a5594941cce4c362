"""The selection of a device, in the forms of a new run and of a tune."""

import streamlit as st

from dashboard import state
from dashboard.components import device_words, plain
from dashboard.data.doctor import doctor_run
from harness.settings.spec import SPECS

_POLL_S = 0.5


def device_selection(*, is_in_address: bool = False) -> None:
    """Draw the selection; its value is the widget `state.new_key("device")`. With `is_in_address` another
    device than "auto" is put into the address of the page."""
    doctor = doctor_run()
    options = {"auto": "auto: the first GPU, else the CPU"}
    if doctor.report is not None:
        for device in doctor.report.devices:
            options[device.facts.torch_name] = f"{device.facts.torch_name} · {device_words(device.facts)}"
    key = state.new_key("device")
    if state.widget_value(key) not in (None, *options):
        state.set_widget_value(key, "auto")
    st.selectbox(
        "Device",
        list(options),
        key=key,
        format_func=options.__getitem__,
        help=plain(SPECS["device"].help),
        bind="query-params" if is_in_address else None,
    )
    if not doctor.is_done:
        st.fragment(_wait_for_machine, run_every=_POLL_S)()
    elif doctor.problem is not None:
        st.caption(plain(doctor.problem))


def _wait_for_machine() -> None:
    st.caption("Checking this machine…")
    if doctor_run().is_done:
        st.rerun()
