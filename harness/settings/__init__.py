"""The settings of a run, one declaration each: type, bounds, default, help, devices, effect.

A setting is a field of one of the groups below; its `Setting` annotation adds what pydantic lacks.
`harness.settings.spec` derives flags, forms, docs and messages from these declarations.
"""

from pydantic import ConfigDict

from harness.settings.data import DataSettings
from harness.settings.memory import MemorySettings
from harness.settings.optimization import OptimizationSettings
from harness.settings.precision import PrecisionSettings
from harness.settings.run import RunSettings
from harness.settings.workload import WorkloadSettings


# pydantic lists the fields of the last base first.
class Settings(
    RunSettings, OptimizationSettings, MemorySettings, PrecisionSettings, DataSettings, WorkloadSettings
):
    """All settings of a run. Frozen; `harness.settings.spec.change` returns a changed copy."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)
