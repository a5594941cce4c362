"""Parsing of untrusted JSON: limited nesting, and only text that can be encoded."""

import json
from typing import Any

# What Stepscope writes is nested five levels deep.
MOST_DEPTH = 32


def json_value(text: str) -> Any:
    """Parse `text`.

    Raises ValueError when it is no JSON, nested more than `MOST_DEPTH` levels deep, or contains half of a
    surrogate pair, which cannot be encoded.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    # Scanned only where it can matter: most texts have few brackets and no escape.
    if text.count("[") + text.count("{") > MOST_DEPTH and _is_deep(value):
        raise ValueError(f"it is nested more than {MOST_DEPTH} levels deep")
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode()
    return value


def json_object(text: str) -> dict[str, Any]:
    """Parse `text` as a JSON object. Raises ValueError as `json_value` does, and for any other value."""
    value = json_value(text)
    if not isinstance(value, dict):
        raise ValueError(f"it is no JSON object but of the kind {type(value).__name__}")
    return value


def _is_deep(value: object) -> bool:
    level = [value]
    for _ in range(MOST_DEPTH + 1):
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True
