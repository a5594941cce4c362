"""The declaration of a setting, and the enums that settings choose from."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from harness.records.run import DeviceKind


class Effect(StrEnum):
    """The moment at which a change of a setting takes effect."""

    NEXT_STEP = "next step"
    LOADER = "loader rebuilt"
    OPTIMIZER = "optimizer rebuilt, its state retained"
    MODEL = "model recompiled"
    NEW_RUN = "new run"


class Group(StrEnum):
    """The group of a setting in the form and in the docs."""

    WORKLOAD = "Workload"
    DATA = "Data and transfer"
    PRECISION = "Precision and speed"
    MEMORY = "Memory"
    OPTIMIZATION = "Optimization"
    RUN = "Run"


class MatmulPrecision(StrEnum):
    """`torch.set_float32_matmul_precision`: "high" allows TF32, "medium" bfloat16 in float32 products."""

    HIGHEST = "highest"
    HIGH = "high"
    MEDIUM = "medium"


class Optimizer(StrEnum):
    """The optimizer."""

    SGD = "sgd"
    ADAM = "adam"
    ADAMW = "adamw"


class OptimizerImpl(StrEnum):
    """The optimizer's implementation: torch's choice, one by one, multi-tensor or one fused kernel."""

    AUTO = "auto"
    LOOP = "loop"
    FOREACH = "foreach"
    FUSED = "fused"


class Parallelism(StrEnum):
    """The way in which several processes train one model."""

    # Each has the whole model, and gradients are averaged (DistributedDataParallel).
    DDP = "ddp"
    # Weights, gradients and optimizer state are sharded (fully_shard).
    FSDP2 = "fsdp2"


class OomPolicy(StrEnum):
    """The action when memory runs out in a step."""

    # End the run.
    STOP = "stop"
    # Undo the change of settings right before the error; end the run when there was none.
    ROLL_BACK = "rollback"
    # Halve the batch and double the accumulation: the effective batch does not change.
    HALVE = "halve"
    # Skip the batch.
    SKIP = "skip"


class Need(StrEnum):
    """A capability of the device, the model or the data that a setting needs to have an effect."""

    PINNED_MEMORY = "pinned memory"
    CACHE = "a cache to give back"
    CAP = "a memory limit"
    COMPILER = "a compiler"
    IMAGES = "a model of images"
    TEXT = "a model of text"
    CONVOLUTIONS = "convolutions over images"
    CHECKPOINTS = "checkpoints"
    FOLDER = "data in a folder"
    SCRIPT = "a script of your own"
    RANKS = "several processes"


@dataclass(frozen=True)
class Setting:
    """The properties of a setting beyond its type."""

    label: str
    help: str
    group: Group
    effect: Effect
    devices: frozenset[DeviceKind] = field(default_factory=lambda: frozenset(DeviceKind))
    unit: str = ""
    advanced: bool = False
    # A short label, as for a chart's marker.
    short: str = ""
    needs: Need | None = None
    # True when the memory peak of a step may change with it.
    affects_peak: bool = True
    # True when it changes the memory limit of the run.
    affects_free_memory: bool = False
    # True when the memory prediction depends on it.
    affects_prediction: bool = False
    # Values that `stepscope tune` compares with the current one.
    trial_values: tuple[Any, ...] = ()
    # True when its number only identifies something: it is written without separators.
    is_identifier: bool = False
