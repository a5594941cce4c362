"""The doctor's report and its JSON. Free of torch, so that the dashboard can read it."""

import json
from enum import StrEnum
from types import NoneType
from typing import Any, NamedTuple

from harness.errors import StepscopeError
from harness.records.run import AmpMode, DeviceFacts, DeviceKind


class Status(StrEnum):
    """The result of a check."""

    OK = "ok"
    # It works, with a limitation or advice.
    WARNING = "warning"
    # It should work and does not.
    PROBLEM = "problem"
    # Not available, which is fine.
    UNAVAILABLE = "unavailable"


class Check(NamedTuple):
    """One check. `value` is its finding, `advice` one sentence on what to do, or empty."""

    name: str
    status: Status
    value: str
    advice: str = ""


class DeviceReport(NamedTuple):
    """A device. `tensor_cores` names their generation, None where there are none."""

    facts: DeviceFacts
    tensor_cores: str | None
    # Its limitations, each a sentence with its reason.
    limits: tuple[str, ...]


class DoctorReport(NamedTuple):
    """The result of `stepscope doctor`."""

    checks: tuple[Check, ...]
    devices: tuple[DeviceReport, ...]

    @property
    def worst(self) -> Status:
        """The most severe status: PROBLEM, WARNING or OK."""
        statuses = {check.status for check in self.checks}
        return next((status for status in (Status.PROBLEM, Status.WARNING) if status in statuses), Status.OK)


def to_json(report: DoctorReport) -> str:
    """Serialize the report as one JSON object; `from_json` reads it."""
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


def from_json(text: str) -> DoctorReport:
    """Parse the output of `to_json`. Raises StepscopeError for anything else."""
    try:
        values = json.loads(text)
        checks = tuple(Check(**check | {"status": Status(check["status"])}) for check in values["checks"])
        devices = tuple(
            DeviceReport(
                facts_from_dict(device["facts"]),
                device["tensor_cores"],
                tuple(device["limits"]),
            )
            for device in values["devices"]
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise StepscopeError(
            f"The doctor's report cannot be read ({error}); run `stepscope doctor`."
        ) from error
    return DoctorReport(checks, devices)


def facts_from_dict(values: dict[str, Any]) -> DeviceFacts:
    """Convert a JSON object to device facts; unknown members are ignored.

    Raises KeyError, TypeError, ValueError or IndexError for anything else.
    """
    members = {name: values[name] for name in DeviceFacts._fields}
    for name, kinds in _FACT_KINDS.items():
        if type(members[name]) not in kinds:
            raise TypeError(f"{name} cannot be {str(members[name])[:80]!r}")
    capability = members["capability"]
    return DeviceFacts(
        **members
        | {
            "kind": DeviceKind(members["kind"]),
            "capability": None if capability is None else (int(capability[0]), int(capability[1])),
            "amp_modes": tuple(AmpMode(mode) for mode in members["amp_modes"]),
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
