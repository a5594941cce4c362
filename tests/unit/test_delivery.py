"""Test that all output of a page's run reaches the browser, with a real session of Streamlit."""

import asyncio
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
from streamlit.proto.ClientState_pb2 import ClientState
from streamlit.runtime import Runtime
from streamlit.runtime.app_session import AppSession
from streamlit.runtime.memory_uploaded_file_manager import MemoryUploadedFileManager
from streamlit.runtime.script_data import ScriptData
from streamlit.runtime.scriptrunner.script_cache import ScriptCache

from dashboard.delivery import deliver_last_output
from tests.supervision import until

_PAGE = """
import streamlit as st

@st.fragment
def tick():
    st.text("tick")

tick()
for number in range(20):
    st.text(f"line {number}")
"""


@pytest.fixture(autouse=True)
def _runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runtime, "_instance", Mock())


@pytest.fixture(autouse=True)
def _sessions_of_other_tests_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AppSession, "_create_scriptrunner", vars(AppSession)["_create_scriptrunner"])


class _Browser:
    """A session and what the browser has received from it."""

    def __init__(self, page: Path) -> None:
        self.session = AppSession(
            ScriptData(str(page)), MemoryUploadedFileManager("/upload"), ScriptCache(), None, {}
        )

    def request(self, fragment: str = "") -> None:
        self.session.request_rerun(ClientState(fragment_id=fragment))

    def received(self) -> dict[str, str]:
        """The texts that came since the last call, each with the id of its fragment."""
        deltas = [message.delta for message in self.session.flush_browser_queue()]
        texts = [(delta.new_element.text.body, delta.fragment_id) for delta in deltas]
        return {text: fragment for text, fragment in texts if text}

    async def settle(self) -> None:
        """Let the session do what is due until it has no runner."""
        while self.session._scriptrunner is not None:
            await asyncio.sleep(0.005)


def _wait_for_the_runner() -> None:
    """Wait, without the event loop, until the page's run has ended."""
    until(
        lambda: [one.name for one in threading.enumerate() if "ScriptRunner" in one.name],
        lambda names: not names,
    )


async def _tick_as_a_run_ends(page: Path) -> list[str]:
    """Request a tick when a run has ended and nothing of it was taken from the loop's queue; return what the
    browser receives in the end."""
    browser = _Browser(page)
    browser.request()
    await browser.settle()
    fragment = browser.received()["tick"]
    browser.request()
    _wait_for_the_runner()
    browser.request(fragment)
    await browser.settle()
    received = list(browser.received())
    browser.session.shutdown()
    return received


def test_a_tick_that_comes_as_a_run_ends_takes_nothing_from_it(tmp_path: Path) -> None:
    page = tmp_path / "page.py"
    page.write_text(_PAGE)
    deliver_last_output()
    deliver_last_output()
    received = asyncio.run(_tick_as_a_run_ends(page))
    # Of two outputs in one place the browser gets the newer one alone.
    assert received == [*(f"line {number}" for number in range(20)), "tick"]
