"""What is asked of a prediction: the settings that matter to it, for a kind of device; and its name in the
cache."""

import hashlib
import json
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

import harness
from harness.catalog import data, model
from harness.errors import SettingError
from harness.predict.answer import Target
from harness.predict.processor import this_processor
from harness.records.run import DeviceKind
from harness.settings import Settings
from harness.settings.declaration import Need
from harness.settings.resolve import no_effect_reason
from harness.settings.spec import SPECS, parse

REVISION = 4
"""Raise it when the same question gets another answer: what was cached before is then not read."""

_NOT_MEASURED = (DeviceKind.XPU, DeviceKind.MPS)
_WHY_NOT = (
    "Memory is predicted for NVIDIA GPUs and the CPU alone: what the kernels of Intel's and Apple's GPUs "
    "take beside tensors was not measured."
)


class Question(NamedTuple):
    """`settings` with everything at its default that does not change the answer."""

    settings: Settings
    kind: DeviceKind
    capability: tuple[int, int] | None

    @classmethod
    def of(cls, settings: Settings, target: Target) -> "Question":
        """The question whether a run fits. Raises SettingError for an unknown model or data source."""
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
        """One line, which is also what its key is made of."""
        return json.dumps([json.loads(self.settings.model_dump_json()), self.kind, self.capability])

    @classmethod
    def from_json(cls, text: str) -> "Question":
        """Read what `to_json` wrote. Raises ValueError or SettingError."""
        values, kind, capability = json.loads(text)
        return cls(parse(values), DeviceKind(kind), None if capability is None else tuple(capability))

    @property
    def key(self) -> str:
        """Its name in the cache: other versions of torch or of Stepscope make it another; on the CPU, so does
        another processor."""
        processor = this_processor() if self.kind is DeviceKind.CPU else None
        stated = [REVISION, harness.__version__, torch_version(), processor, self.to_json()]
        return hashlib.sha256(json.dumps(stated).encode()).hexdigest()[:32]


def torch_version() -> str:
    """Without importing it."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return "none"
