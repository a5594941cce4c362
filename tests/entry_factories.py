"""Entries of a list of runs."""

from collections.abc import Mapping
from typing import Any

from harness.records.entry import RunEntry


def an_entry(
    name: str,
    model: str | None = None,
    script: str | None = None,
    device: str = "cpu",
    settings: Mapping[str, Any] | None = None,
    **fields: Any,
) -> RunEntry:
    """A finished run in a list, of a model or a script, on `device`."""
    kind, _, ordinal = device.partition(":")
    values: dict[str, Any] = dict.fromkeys(RunEntry._fields)
    values |= {
        "run_id": f"id-{name}",
        "name": name,
        "state": "finished",
        "message": "Finished.",
        "is_warning": False,
        "subject": script or (None if model is None else f"{model} laptop"),
        "settings": settings if settings is not None or model is None else {"model": model},
        "script": None if script is None else {"command": script},
        "device": {"kind": kind, "ordinal": int(ordinal) if ordinal else None},
        "steps": 0,
        "created_unix_ns": 1,
        "is_simulated": False,
        "versions": {},
        "path": f"/runs/{name}",
        "tags": (),
        "note": "",
    }
    return RunEntry(**(values | fields))
