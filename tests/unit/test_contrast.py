"""Text against its ground, as WCAG 2 asks for it (AA): the colors of the theme and of code in the pages."""

import re
import tomllib
from pathlib import Path

import pytest

from dashboard.charts.theme import contrast

_DASHBOARD = Path(__file__).parents[2] / "dashboard"
_CONFIG = tomllib.loads((_DASHBOARD / ".streamlit/config.toml").read_text(encoding="utf-8"))["theme"]
_READABLE = 4.5
# Of Streamlit 1.67: the opacity of captions, and of the primary color behind a selected segment.
_CAPTION, _SELECTED = 0.6, 0.1
_CODE = re.compile(r"^\[data-testid=\"stCode\"\].*light-dark\((#\w+), (#\w+)\)", re.M)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_captions_and_selected_segments_can_be_read(theme: str) -> None:
    colors = _CONFIG[theme]
    ground, text, primary = (colors[f"{name}Color"] for name in ("background", "text", "primary"))
    assert contrast(_mixed(text, ground, _CAPTION), ground) >= _READABLE
    assert contrast(primary, _mixed(primary, ground, _SELECTED)) >= _READABLE


def test_code_can_be_read() -> None:
    pairs = _CODE.findall((_DASHBOARD / "static/stepscope.css").read_text(encoding="utf-8"))
    assert len(pairs) == 6
    for theme, colors in zip(("light", "dark"), zip(*pairs, strict=True), strict=True):
        ground = _CONFIG[theme]["secondaryBackgroundColor"]
        assert min(contrast(color, ground) for color in colors) >= _READABLE


def _mixed(color: str, ground: str, share: float) -> str:
    parts = [[int(text[at : at + 2], 16) for at in (1, 3, 5)] for text in (color, ground)]
    return "#" + "".join(
        f"{round(share * over + (1 - share) * under):02x}" for over, under in zip(*parts, strict=True)
    )
