"""JSON in the row of a run: the facts of its device and its versions."""

from typing import Any

from harness.files.plain_json import json_object
from harness.records import json as row_json
from harness.records.run import DeviceFacts


def read_device(text: str) -> DeviceFacts | None:
    """Parse the device facts in a log; None if that fails."""
    try:
        return row_json.from_json(DeviceFacts, text, ignore_unknown=True)
    except ValueError:
        return None


def read_versions(text: str) -> dict[str, Any]:
    """Parse the versions in a log; empty if that fails."""
    try:
        return json_object(text)
    except ValueError:
        return {}
