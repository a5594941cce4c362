"""The doctor's report and its JSON. Free of torch, so that the dashboard can read it."""

import json
from enum import StrEnum
from typing import NamedTuple

from harness.errors import StepscopeError
from harness.records import json as row_json
from harness.records.run import DeviceFacts


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
        return row_json.from_json(DoctorReport, text, ignore_unknown=True)
    except ValueError as error:
        raise StepscopeError(
            f"The doctor's report cannot be read ({error}); run `stepscope doctor`."
        ) from error
