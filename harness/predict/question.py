"""Request for a prediction: the settings that affect it, for a kind of device; and its cache key."""

import hashlib
import json
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

import harness
from harness.catalog import data, model
from harness.catalog.own import digest
from harness.errors import SettingError
from harness.predict.answer import Target
from harness.predict.processor import this_processor
from harness.records.run import DeviceKind
from harness.settings import Settings
from harness.settings.declaration import Need
from harness.settings.resolve import no_effect_reason
from harness.settings.spec import SPECS, parse

# Increment it when the result for the same question changes, which invalidates the cache.
REVISION = 9

_NOT_MEASURED = (DeviceKind.XPU, DeviceKind.MPS)
_WHY_NOT = (
    "Memory is predicted only for NVIDIA GPUs and the CPU: the memory of kernels on Intel's and Apple's GPUs "
    "has not been measured."
)


class Question(NamedTuple):
    """`settings` with all settings that do not affect the result at their defaults."""

    settings: Settings
    kind: DeviceKind
    capability: tuple[int, int] | None

    @classmethod
    def of(cls, settings: Settings, target: Target) -> "Question":
        """Return the question for a run. Raises SettingError for an unknown model or data source."""
        if target.kind in _NOT_MEASURED:
            raise SettingError("device", _WHY_NOT)
        trained, source = model(settings.model), data(settings.data)
        values = {
            spec.name: getattr(settings, spec.name)
            for spec in SPECS.values()
            if spec.affects_prediction
            and target.kind in spec.devices
            and no_effect_reason(spec, trained) is None
            and (spec.needs is not Need.FOLDER or source.needs_path)
        }
        # Each micro-batch after the second repeats it.
        values["grad_accumulation"] = min(settings.grad_accumulation, 2)
        return cls(parse(values), target.kind, target.capability)

    def to_json(self) -> str:
        """Serialize as one line, which is also part of the key."""
        return json.dumps([json.loads(self.settings.model_dump_json()), self.kind, self.capability])

    @classmethod
    def from_json(cls, text: str) -> "Question":
        """Parse the output of `to_json`. Raises ValueError or SettingError."""
        values, kind, capability = json.loads(text)
        return cls(parse(values), DeviceKind(kind), None if capability is None else tuple(capability))

    @property
    def key(self) -> str:
        """The cache key, which depends on the versions of torch and Stepscope and, on the CPU, on the
        processor."""
        processor = this_processor() if self.kind is DeviceKind.CPU else None
        own = digest(self.settings.model, self.settings.data)
        stated = [REVISION, harness.__version__, torch_version(), processor, self.to_json(), own]
        return hashlib.sha256(json.dumps(stated).encode()).hexdigest()[:32]


def torch_version() -> str:
    """Return torch's version without importing it."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return "none"
