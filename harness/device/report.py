"""What `doctor` found, as values that travel as JSON. Free of torch, so that the dashboard can read it."""

import json
from enum import StrEnum
from types import NoneType
from typing import Any, NamedTuple

from harness.errors import StepscopeError
from harness.records import AmpMode, DeviceFacts, DeviceKind


class Status(StrEnum):
    """How a check came out."""

    OK = "ok"
    # Works, with something to know or to do.
    WARNING = "warning"
    # Something that should work here does not.
    PROBLEM = "problem"
    # Not there, and nothing wrong with that.
    UNAVAILABLE = "unavailable"


class Check(NamedTuple):
    """One thing looked at. `value` is what was found, `advice` one sentence on what to do, or empty."""

    name: str
    status: Status
    value: str
    advice: str = ""


class DeviceReport(NamedTuple):
    """A device. `tensor_cores` names their generation, None where there are none."""

    facts: DeviceFacts
    tensor_cores: str | None
    # What cannot be done on it here, each with its reason, in a sentence.
    limits: tuple[str, ...]


class Report(NamedTuple):
    """Everything `doctor` found."""

    checks: tuple[Check, ...]
    devices: tuple[DeviceReport, ...]

    @property
    def worst(self) -> Status:
        """PROBLEM when there is one, else WARNING when there is one, else OK."""
        found = {check.status for check in self.checks}
        return next((status for status in (Status.PROBLEM, Status.WARNING) if status in found), Status.OK)


def to_json(report: Report) -> str:
    """The report as one JSON object; `from_json` reads it."""
    return json.dumps(
        {
            "checks": [check._asdict() for check in report.checks],
            "devices": [
                device._asdict() | {"facts": device.facts._asdict() | {"torch_name": device.facts.torch_name}}
                for device in report.devices
            ],
        },
        indent=2,
    )


def from_json(text: str) -> Report:
    """Undo `to_json`. Raises StepscopeError when the text is not such a report."""
    try:
        found = json.loads(text)
        checks = tuple(Check(**check | {"status": Status(check["status"])}) for check in found["checks"])
        devices = tuple(
            DeviceReport(
                facts_from_dict(device["facts"]),
                device["tensor_cores"],
                tuple(device["limits"]),
            )
            for device in found["devices"]
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise StepscopeError(
            f"The doctor's report cannot be read ({error}); run `stepscope doctor`."
        ) from error
    return Report(checks, devices)


def facts_from_dict(values: dict[str, Any]) -> DeviceFacts:
    """Device facts from their JSON object; members it does not know are left out.

    Raises KeyError, TypeError, ValueError or IndexError for anything else.
    """
    known = {name: values[name] for name in DeviceFacts._fields}
    for name, kinds in _FACT_KINDS.items():
        if type(known[name]) not in kinds:
            raise TypeError(f"{name} cannot be {str(known[name])[:80]!r}")
    capability = known["capability"]
    return DeviceFacts(
        **known
        | {
            "kind": DeviceKind(known["kind"]),
            "capability": None if capability is None else (int(capability[0]), int(capability[1])),
            "amp_modes": tuple(AmpMode(mode) for mode in known["amp_modes"]),
        }
    )


_FACT_KINDS: dict[str, tuple[type, ...]] = {
    "ordinal": (int, NoneType),
    "uuid": (str, NoneType),
    "name": (str,),
    "memory_bytes": (int, NoneType),
    "capability": (list, tuple, NoneType),
    "multiprocessors": (int, NoneType),
    "power_limit_w": (int, float, NoneType),
    "amp_modes": (list, tuple),
    "can_pin": (bool,),
    "can_trim": (bool,),
    "can_cap": (bool,),
    "can_compile": (bool,),
}
