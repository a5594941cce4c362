from pathlib import Path

from harness.catalog.docs import markdown

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def test_the_models_page_is_what_the_catalog_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == markdown()
