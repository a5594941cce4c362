"""Rows of a memory prediction, with conversion to JSON and to text for the shell and the page."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from harness import words
from harness.device.cap import CPU_HEADROOM_BYTES
from harness.records import json as row_json
from harness.records.memory import MemoryCategory
from harness.records.run import DeviceFacts, DeviceKind
from harness.settings import Settings

# The categories of a prediction, in display order. Weights are parameters and buffers; temporaries are all
# other tensors, including the gradients of activations.
CATEGORIES = (
    MemoryCategory.WEIGHTS,
    MemoryCategory.GRADIENTS,
    MemoryCategory.OPTIMIZER,
    MemoryCategory.ACTIVATIONS,
    MemoryCategory.TEMPORARIES,
    MemoryCategory.INPUTS,
    MemoryCategory.LIBRARIES,
)


class Target(NamedTuple):
    """The device of a prediction. `memory_bytes` is None if unknown, for example on another machine."""

    kind: DeviceKind
    name: str
    memory_bytes: int | None = None
    capability: tuple[int, int] | None = None

    @classmethod
    def of(cls, facts: DeviceFacts) -> "Target":
        """Return the target for a device of this machine."""
        return cls(facts.kind, facts.name, facts.memory_bytes, facts.capability)


class PartBytes(NamedTuple):
    """Memory of one category at the peak."""

    category: MemoryCategory
    size_bytes: int


class ModuleBytes(NamedTuple):
    """Memory of one module without its submodules. `module` is its path in the model, "" for the model
    itself; `activation_bytes` is the memory its forward pass retains for backward."""

    module: str
    kind: str
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int


class Prediction(NamedTuple):
    """The predicted memory of training from the second step on.

    `peak_allocated_bytes` is comparable to `torch.cuda.max_memory_allocated` (on the CPU: to malloc's
    allocated memory) and is the sum of `parts`. `peak_reserved_bytes` is the caching allocator's reserved
    memory without a limit, `least_reserved_bytes` the smallest cap under which no allocation fails; both are
    None on the CPU, which has no caching allocator. `context_bytes` is additional: the memory of the process
    before the model is built; None if unknown. `context_note` describes it.
    """

    target: DeviceKind
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    least_reserved_bytes: int | None
    parts: tuple[PartBytes, ...]
    # Phase of the peak within a step: forward, backward, optimizer, …
    phase: str
    # Baseline between two steps.
    static_bytes: int
    context_bytes: int | None
    context_note: str
    modules: tuple[ModuleBytes, ...]
    # Sentences on parts that are excluded, or only estimated.
    notes: tuple[str, ...]

    @property
    def needed_bytes(self) -> int:
        """Minimum device memory for the run's own tensors and workspaces, without the context."""
        return self.peak_allocated_bytes if self.least_reserved_bytes is None else self.least_reserved_bytes


class Impossible(NamedTuple):
    """A prediction is not possible; `reason` is one sentence. `is_passing` is true for a transient failure,
    such as a child process that was killed: another request may succeed."""

    reason: str
    is_passing: bool = False


Answer = Prediction | Impossible


class Remedy(NamedTuple):
    """A change of settings that lowers the peak. `changes` are arguments of `harness.settings.spec.change`;
    `fits` is None without a known limit."""

    label: str
    changes: Mapping[str, Any]
    peak_bytes: int
    saved_bytes: int
    fits: bool | None


class Advice(NamedTuple):
    """Conclusions from a prediction. `limit_words` names the limit, for a sentence; `largest_batch` is the
    largest batch that fits: None without a limit, 0 if not even a batch of one fits."""

    limit_bytes: int | None
    limit_words: str
    fits: bool | None
    largest_batch: int | None
    remedies: tuple[Remedy, ...]


def limit_of(settings: Settings, target: Target) -> tuple[int | None, str]:
    """Return the memory limit in bytes of a run with `settings` on `target`, and its name in words."""
    cap = settings.memory_cap_bytes
    if cap is not None and (target.memory_bytes is None or cap <= target.memory_bytes):
        return cap, f"the memory cap of {words.size(cap)}"
    if target.memory_bytes is None:
        return None, "no known limit"
    return target.memory_bytes, f"the {words.size(target.memory_bytes)} of {target.name}"


# A CUDA context with its libraries takes about 0.3 to 0.7 GiB, depending on GPU, driver and loaded kernels.
# Within this distance of the device's memory the fit is "unknown", unless the size of the context is known.
CONTEXT_ALLOWANCE_BYTES = 768 * 2**20


# Memory of a run's process besides the model, which a cap on the CPU also covers: rows queued for the log and
# SQLite's cache, which grew by 0.2 to 0.3 MiB in the first 50 steps, and the heap's holes, of 0.6 to 1.9 MiB
# at the ends of these steps (mallinfo2; rnn and transformer, Intel Xeon).
OWN_DATA_BYTES = 4 * 2**20


def available_bytes(prediction: Prediction, settings: Settings, target: Target) -> int | None:
    """Return the memory available to the run: the limit, less the context if the limit is the device's
    memory. A cap covers the run's own memory only (on the CPU also the rest of the process, which is
    subtracted). None without a limit."""
    limit, _ = limit_of(settings, target)
    if limit is None or _is_capped(settings, target):
        own_bytes = OWN_DATA_BYTES if target.kind is DeviceKind.CPU else 0
        return None if limit is None else limit - own_bytes
    context = prediction.context_bytes
    return limit - (CONTEXT_ALLOWANCE_BYTES if context is None else context)


def smallest_cap_bytes(prediction: Prediction, settings: Settings, target: Target) -> int | None:
    """Return the smallest cap that the run accepts: a cap on the CPU must leave headroom above the baseline
    between steps. It is compared with the cap itself, as in the run. None without a cap on the CPU."""
    is_cpu_cap = target.kind is DeviceKind.CPU and _is_capped(settings, target)
    return prediction.static_bytes + CPU_HEADROOM_BYTES if is_cpu_cap else None


def is_cap_too_small(prediction: Prediction, settings: Settings, target: Target) -> bool:
    """Return whether the run rejects its cap, however little memory its steps need."""
    limit, smallest = limit_of(settings, target)[0], smallest_cap_bytes(prediction, settings, target)
    return limit is not None and smallest is not None and limit < smallest


def _is_capped(settings: Settings, target: Target) -> bool:
    limit, _ = limit_of(settings, target)
    return limit is not None and (target.memory_bytes is None or limit < target.memory_bytes)


def fits(prediction: Prediction, settings: Settings, target: Target) -> bool | None:
    """Return whether the run fits its limit; None without a limit, or if it is too close to tell."""
    limit, _ = limit_of(settings, target)
    free_bytes = available_bytes(prediction, settings, target)
    if limit is None or free_bytes is None:
        return None
    if is_cap_too_small(prediction, settings, target):
        return False
    if prediction.needed_bytes <= free_bytes:
        return True
    return None if prediction.context_bytes is None and prediction.needed_bytes <= limit else False


def off_by(predicted_bytes: int, measured_bytes: int | None) -> str | None:
    """Return the error of a prediction as text, such as "−3.0 %"; None without a measured figure."""
    if not measured_bytes:
        return None
    return f"{100 * (predicted_bytes / measured_bytes - 1):+.1f} %".replace("-", "−")


Row = TypeVar("Row", bound=Prediction | Impossible | Advice | ModuleBytes | PartBytes | Remedy | Target)


def to_json(row: Prediction | Impossible | Advice | Target) -> str:
    """Serialize a row as one line of JSON for `from_json`."""
    return row_json.to_json(row)


def from_json(kind: type[Row], text: str) -> Row:
    """Parse the output of `to_json`. Raises ValueError for a missing or unknown field, or another type."""
    return row_json.from_json(kind, text)


def part_rows(prediction: Prediction) -> list[tuple[str, str, str]]:
    """Return name, size and share of the peak for each category; empty categories are omitted."""
    whole = prediction.peak_allocated_bytes
    return [
        (part.category.value, words.size(part.size_bytes), words.percent(100 * part.size_bytes / whole))
        for part in prediction.parts
        if part.size_bytes
    ]


def module_rows(prediction: Prediction) -> list[tuple[str, ...]]:
    """Return path, class, and sizes of parameters, gradients, optimizer state and activations per module."""
    return [
        (row.module or "(the model)", row.kind, *(words.size(size_bytes) for size_bytes in row[2:]))
        for row in prediction.modules
    ]


def remedy_rows(advice: Advice) -> list[tuple[str, str, str, str]]:
    """Return label, peak, saved bytes and fit for each remedy."""
    fitting = {True: "fits", False: "does not fit", None: ""}
    return [
        (remedy.label, words.size(remedy.peak_bytes), words.size(remedy.saved_bytes), fitting[remedy.fits])
        for remedy in advice.remedies
    ]


def peak_sentence(prediction: Prediction) -> str:
    """Return a sentence on the peak, its phase, and the baseline between steps."""
    return (
        f"Predicted peak: {words.size(prediction.peak_allocated_bytes)} allocated, in {prediction.phase}; "
        f"{words.size(prediction.static_bytes)} are the baseline between steps."
    )


def fit_sentence(prediction: Prediction, settings: Settings, target: Target) -> str:
    """Return a sentence on whether the run fits its limit, and by how much."""
    limit, limit_words = limit_of(settings, target)
    free_bytes = available_bytes(prediction, settings, target)
    if limit is None or free_bytes is None:
        return f"No limit is known: {target.name} does not report its memory. Set one with memory_cap_gib."
    needed = words.size(prediction.needed_bytes)
    match fits(prediction, settings, target):
        case True:
            return f"It fits: {needed} needed, {words.size(free_bytes)} available of {limit_words}."
        case False:
            smallest = smallest_cap_bytes(prediction, settings, target)
            if smallest is not None and limit < smallest:
                return (
                    f"It does not fit: {limit_words} is {words.size(smallest - limit)} too small, since a "
                    f"cap on the CPU must leave {words.size(CPU_HEADROOM_BYTES)} beyond the baseline of "
                    f"{words.size(prediction.static_bytes)} between steps. The steps need {needed}."
                )
            over = words.size(prediction.needed_bytes - free_bytes)
            return f"It does not fit: {needed} needed, {over} more than available of {limit_words}."
        case _:
            return f"Too close to tell: {needed} needed of {limit_words}, part of which the context uses."
