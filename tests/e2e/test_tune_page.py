"""The Tune page in the browser: a double click starts one tune."""

import pytest

from harness.tune.folder import tunes
from harness.tune.rows import TuneState
from tests.e2e.serving import Dashboard
from tests.e2e.tab import Tab
from tests.supervision import until

pytestmark = [pytest.mark.browser, pytest.mark.long]


def test_a_double_click_starts_one_tune(tab: Tab, dashboard: Dashboard) -> None:
    tab.open("tune")
    tab.key("tune_form").get_by_role("button", name="Start", exact=True).evaluate(
        "button => { button.click(); setTimeout(() => button.click(), 20); }"
    )
    folder = until(lambda: tunes(dashboard.home), bool)[0]
    folder.request_stop()
    until(lambda: folder.view().state, lambda state: state is not TuneState.RUNNING)
    assert len(tunes(dashboard.home)) == 1
