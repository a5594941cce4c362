from pathlib import Path

from harness.settings.docs import markdown

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_the_settings_page_is_what_the_declarations_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == markdown()
