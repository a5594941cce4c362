"""The Memory page on every scenario, on old and damaged logs, and what it says of what is not known."""

import pytest
from streamlit.testing.v1 import AppTest

from harness.demo.scenarios import SCENARIOS
from tests.app.conftest import Open, Write, texts


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_is_shown_without_an_exception(scenario: str, demo: Write, open_page: Open) -> None:
    app = open_page("memory", run=demo(scenario).run_id)
    assert not app.exception
    assert "simulated" in texts(app)
