"""A screen reader goes from heading to heading: each page has its title, and its panels below."""

import pytest

from tests.app.conftest import Open, Write

_PANELS = {
    "live": ["Changes"],
    "memory": ["Memory by step", "Leak detection", "By module", "Live allocations"],
    "profiler": ["Profile", "Phases", "Step times"],
    "runs": [],
    "compare": ["Step times", "Phases", "Figures"],
    "tune": [],
    "new": ["Data and transfer", "Memory"],
    "system": ["Devices", "Checks"],
}
_TITLES = {"new": "New run", "compare": "Compare runs"}


@pytest.mark.parametrize("page", list(_PANELS))
def test_a_page_has_one_title_and_a_heading_per_panel(page: str, demo: Write, open_page: Open) -> None:
    runs = [demo("slow-loader").run_id, demo("steady", 200).run_id]
    app = open_page(page, run=runs[0], runs=",".join(runs))
    assert [title.value for title in app.title] == [_TITLES.get(page, page.capitalize())]
    headings = [header.value for header in app.header]
    assert set(_PANELS[page]) <= set(headings)
    assert len(set(headings)) == len(headings)
