"""What a setting is: its declaration beside its type, and the closed sets that settings choose from."""

from dataclasses import dataclass, field
from enum import StrEnum

from harness.records import DeviceKind


class Effect(StrEnum):
    """When a change of a setting takes effect."""

    NEXT_STEP = "next step"
    LOADER = "loader rebuilt"
    OPTIMIZER = "optimizer rebuilt, its state kept"
    MODEL = "model recompiled"
    NEW_RUN = "new run"


class Group(StrEnum):
    """Where a setting stands in the form and in the docs."""

    WORKLOAD = "Workload"
    DATA = "Data and transfer"
    PRECISION = "Precision and speed"
    MEMORY = "Memory"
    OPTIMISATION = "Optimisation"
    RUN = "Run"


class MatmulPrecision(StrEnum):
    """`torch.set_float32_matmul_precision`: "high" allows TF32, "medium" bfloat16 inside float32 products."""

    HIGHEST = "highest"
    HIGH = "high"
    MEDIUM = "medium"


class Optimizer(StrEnum):
    """The optimizer."""

    SGD = "sgd"
    ADAM = "adam"
    ADAMW = "adamw"


class OptimizerImpl(StrEnum):
    """How the optimizer walks the parameters: as torch chooses, one by one, multi-tensor or in one kernel."""

    AUTO = "auto"
    LOOP = "loop"
    FOREACH = "foreach"
    FUSED = "fused"


class OomPolicy(StrEnum):
    """What is done when memory runs out in a step."""

    # End the run.
    STOP = "stop"
    # Undo the change of settings that came right before it; end the run when there was none.
    ROLL_BACK = "rollback"
    # Halve the batch and double the accumulation, so that the effective batch stays.
    HALVE = "halve"
    # Leave the batch out and go on with the next.
    SKIP = "skip"


class Need(StrEnum):
    """What a setting needs to have an effect: something that the device, the model or the data can do."""

    PINNED_MEMORY = "pinned memory"
    CACHE = "a cache to give back"
    CAP = "a memory limit"
    COMPILER = "a compiler"
    IMAGES = "a model of images"
    TEXT = "a model of text"
    CONVOLUTIONS = "convolutions over images"
    CHECKPOINTS = "checkpoints"
    FOLDER = "data in a folder"


@dataclass(frozen=True)
class Setting:
    """What a setting's type does not say."""

    label: str
    help: str
    group: Group
    effect: Effect
    devices: frozenset[DeviceKind] = field(default_factory=lambda: frozenset(DeviceKind))
    unit: str = ""
    advanced: bool = False
    # The label where there is little room, as on a chart's marker.
    short: str = ""
    needs: Need | None = None
    # Whether a step's memory peak may change with it.
    affects_peak: bool = True
    # Whether it changes how much memory the run may use.
    affects_room: bool = False
    # Whether the memory predicted for a run depends on it.
    affects_prediction: bool = False
