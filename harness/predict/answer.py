"""What a prediction of memory says, as rows that travel as JSON; and as text, for the shell and the page."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from harness import words
from harness.records import json as row_json
from harness.records.memory import MemoryCategory
from harness.records.run import DeviceFacts, DeviceKind
from harness.settings import Settings

CATEGORIES = (
    MemoryCategory.WEIGHTS,
    MemoryCategory.GRADIENTS,
    MemoryCategory.OPTIMIZER,
    MemoryCategory.ACTIVATIONS,
    MemoryCategory.TEMPORARIES,
    MemoryCategory.INPUTS,
    MemoryCategory.LIBRARIES,
)
"""What a prediction tells apart, in the order in which it is shown. Weights are parameters and buffers;
temporaries are everything else that tensors hold, among them the gradients of activations."""


class Target(NamedTuple):
    """The device to predict for. `memory_bytes` None: not known, for example because it is not here."""

    kind: DeviceKind
    name: str
    memory_bytes: int | None = None
    capability: tuple[int, int] | None = None

    @classmethod
    def of(cls, facts: DeviceFacts) -> "Target":
        """The target that a device of this machine is."""
        return cls(facts.kind, facts.name, facts.memory_bytes, facts.capability)


class PartBytes(NamedTuple):
    """What one category holds at the peak."""

    category: MemoryCategory
    size_bytes: int


class ModuleBytes(NamedTuple):
    """One module's own memory, without that of the modules inside it. `module` is its path in the model, ""
    the model itself; `activation_bytes` is what its forward pass leaves for backward."""

    module: str
    kind: str
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int


class Prediction(NamedTuple):
    """The memory that training is expected to take from the second step on.

    `peak_allocated_bytes` is comparable to `torch.cuda.max_memory_allocated` (on the CPU: to what malloc
    holds); `parts` sum to it. `peak_reserved_bytes` is what the caching allocator would hold with room to
    spare, `least_reserved_bytes` the tightest cap on it under which no allocation fails; both None on the
    CPU, which has no caching allocator. `context_bytes` comes on top of either: what the process holds of the
    device before the model is built; None where that is not known. `context_note` says what it is.
    """

    target: DeviceKind
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    least_reserved_bytes: int | None
    parts: tuple[PartBytes, ...]
    phase: str
    """Where in a step the peak falls: forward, backward, optimizer, …"""
    static_bytes: int
    """Held from step to step."""
    context_bytes: int | None
    context_note: str
    modules: tuple[ModuleBytes, ...]
    notes: tuple[str, ...]
    """Sentences on what is not included, or only estimated."""

    @property
    def needed_bytes(self) -> int:
        """The least the device must have for the run's own tensors and workspaces, without the context."""
        return self.peak_allocated_bytes if self.least_reserved_bytes is None else self.least_reserved_bytes


class Impossible(NamedTuple):
    """No prediction can be made; `reason` is one sentence for a person. `is_passing`: asking again may help
    (the child process died, say)."""

    reason: str
    is_passing: bool = False


Answer = Prediction | Impossible


class Remedy(NamedTuple):
    """A change of settings that lowers the peak. `changes` are arguments of `harness.settings.spec.change`;
    `fits` None: no limit is known."""

    label: str
    changes: Mapping[str, Any]
    peak_bytes: int
    saved_bytes: int
    fits: bool | None


class Advice(NamedTuple):
    """What to make of a prediction. `limit_words` says what the limit is, for a sentence; `largest_batch` is
    the largest batch found to fit: None without a limit, 0 when not even a batch of one does."""

    limit_bytes: int | None
    limit_words: str
    fits: bool | None
    largest_batch: int | None
    remedies: tuple[Remedy, ...]


def limit_of(settings: Settings, target: Target) -> tuple[int | None, str]:
    """The limit in bytes that a run with `settings` on `target` is held against, and what it is in words."""
    cap = settings.memory_cap_bytes
    if cap is not None and (target.memory_bytes is None or cap <= target.memory_bytes):
        return cap, f"the memory cap of {words.size(cap)}"
    if target.memory_bytes is None:
        return None, "no known limit"
    return target.memory_bytes, f"the {words.size(target.memory_bytes)} of {target.name}"


CONTEXT_ALLOWANCE_BYTES = 768 * 2**20
"""A CUDA context with its libraries takes some 0.3 to 0.7 GiB (by GPU, driver and the kernels loaded); what
comes nearer to the device's memory than this is "unknown", unless the context is known."""


OWN_DATA_BYTES = 2 * 2**20
"""Of a run's process beside the model, under a cap on the CPU, which counts it: rows on their way to the log,
and SQLite's cache, which grows to 2,000 KiB. Measured: 0.5 MiB in the first steps, and growing."""


def room_bytes(prediction: Prediction, settings: Settings, target: Target) -> int | None:
    """What the run's own memory may take: the limit, less the context where the limit is the device's memory
    and not a cap, which is held against the run's own memory alone (on the CPU with what the process takes
    beside the model). None without a limit."""
    limit, _ = limit_of(settings, target)
    if limit is None or target.memory_bytes is None or limit < target.memory_bytes:
        own_bytes = OWN_DATA_BYTES if target.kind is DeviceKind.CPU else 0
        return None if limit is None else limit - own_bytes
    context = prediction.context_bytes
    return limit - (CONTEXT_ALLOWANCE_BYTES if context is None else context)


def fits(prediction: Prediction, settings: Settings, target: Target) -> bool | None:
    """Whether the run fits its limit; None when there is no limit, or it is too close to say."""
    limit, _ = limit_of(settings, target)
    room = room_bytes(prediction, settings, target)
    if limit is None or room is None:
        return None
    if prediction.needed_bytes <= room:
        return True
    return None if prediction.context_bytes is None and prediction.needed_bytes <= limit else False


def off_by(predicted_bytes: int, measured_bytes: int | None) -> str | None:
    """How far a prediction is from what was measured, in words: "−3.0 %"; None without a measured figure."""
    if not measured_bytes:
        return None
    return f"{100 * (predicted_bytes / measured_bytes - 1):+.1f} %".replace("-", "−")


Row = TypeVar("Row", bound=Prediction | Impossible | Advice | ModuleBytes | PartBytes | Remedy | Target)


def to_json(row: Prediction | Impossible | Advice | Target) -> str:
    """One line of JSON that `from_json` reads back."""
    return row_json.to_json(row)


def from_json(kind: type[Row], text: str) -> Row:
    """Read what `to_json` wrote. Raises ValueError for anything else: a field missing, unknown or of another
    type."""
    return row_json.from_json(kind, text)


def part_rows(prediction: Prediction) -> list[tuple[str, str, str]]:
    """The peak by category: its name, its size, and its share of the peak; what is nothing is left out."""
    whole = prediction.peak_allocated_bytes
    return [
        (part.category.value, words.size(part.size_bytes), words.percent(100 * part.size_bytes / whole))
        for part in prediction.parts
        if part.size_bytes
    ]


def module_rows(prediction: Prediction) -> list[tuple[str, ...]]:
    """Each module's path, class, and sizes of parameters, gradients, optimizer state and activations."""
    return [
        (row.module or "(the model)", row.kind, *(words.size(size_bytes) for size_bytes in row[2:]))
        for row in prediction.modules
    ]


def remedy_rows(advice: Advice) -> list[tuple[str, str, str, str]]:
    """Each remedy: what it is, the peak with it, what it saves, and whether that fits."""
    fitting = {True: "fits", False: "does not fit", None: ""}
    return [
        (remedy.label, words.size(remedy.peak_bytes), words.size(remedy.saved_bytes), fitting[remedy.fits])
        for remedy in advice.remedies
    ]


def peak_sentence(prediction: Prediction) -> str:
    """The peak, where it falls, and what is held between steps."""
    return (
        f"Predicted peak: {words.size(prediction.peak_allocated_bytes)} allocated, in {prediction.phase}; "
        f"{words.size(prediction.static_bytes)} are held from step to step."
    )


def fit_sentence(prediction: Prediction, settings: Settings, target: Target) -> str:
    """Whether it fits which limit, and by how much."""
    limit, limit_words = limit_of(settings, target)
    room = room_bytes(prediction, settings, target)
    if limit is None or room is None:
        return (
            f"There is no limit to hold it against: {target.name} does not say how much memory it has. "
            "Give one with memory_cap_gib."
        )
    needed = words.size(prediction.needed_bytes)
    match fits(prediction, settings, target):
        case True:
            return f"It fits: {needed} are needed, and {limit_words} leave {words.size(room)}."
        case False:
            over = words.size(prediction.needed_bytes - room)
            return f"It does not fit: {needed} are needed, {over} more than {limit_words} leave."
        case _:
            return f"Too close to say: {needed} are needed of {limit_words}, of which the context takes some."
