"""The placement of waiting entries on devices, as a pure function.

The order is first in, first out per device: an entry that waits for a device keeps it from all later entries.
An entry that fits on no device, even an idle one, is blocked and keeps nothing.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from harness import words
from harness.predict.answer import Answer, Impossible, Prediction, Target, fits, limit_of, smallest_cap_bytes
from harness.records.run import DeviceFacts, DeviceKind
from harness.settings import Settings

AUTO = "auto"


class QueueDevice(NamedTuple):
    """A device of this machine. `free_bytes` is None if it does not report its memory."""

    facts: DeviceFacts
    free_bytes: int | None
    # The name of the run on it.
    occupant: str | None = None
    # Why nothing can start on it, as a clause.
    problem: str | None = None

    @property
    def selector(self) -> str:
        """The value of the setting `device`: its UUID, or torch's name for it."""
        return self.facts.uuid or self.facts.torch_name

    @property
    def is_gpu(self) -> bool:
        """True unless it is the CPU."""
        return self.facts.kind is not DeviceKind.CPU


class Waiting(NamedTuple):
    """A waiting entry. `title` is its name, or what it runs; `settings` is None for a script, the memory of
    which is not predicted."""

    entry_id: int
    title: str
    device: str
    is_forced: bool
    settings: Settings | None


class Placement(NamedTuple):
    """The entry to start next, and its device."""

    entry_id: int
    device: QueueDevice


class Plan(NamedTuple):
    """The next start, if any, and why the other entries wait or cannot start."""

    start: Placement | None
    waiting: dict[int, str]
    blocked: dict[int, str]


# Returns the prediction for an entry on a device; None while it is being computed.
Predict = Callable[[Settings, Target], Answer | None]


class _Fit(Enum):
    YES = "yes"
    # Not now; more memory may become free.
    NOT_NOW = "not now"
    # Not even on the idle device.
    NEVER = "never"


class _Verdict(NamedTuple):
    fit: _Fit
    reason: str = ""


def plan(entries: Sequence[Waiting], devices: Sequence[QueueDevice], predict: Predict) -> Plan:
    """Return the next start and the reasons of the others. `entries` are in their order."""
    start: Placement | None = None
    waiting: dict[int, str] = {}
    blocked: dict[int, str] = {}
    # The title of the entry that is first in line, by the device's selector.
    first: dict[str, str] = {}
    for entry in entries:
        candidates = [device for device in devices if _is_eligible(entry.device, device, devices)]
        if not candidates:
            waiting[entry.entry_id] = f"waits for {entry.device}: this machine does not have it (now)"
            continue
        verdicts = [(device, _verdict(entry, device, predict, first)) for device in candidates]
        free = next((device for device, verdict in verdicts if verdict.fit is _Fit.YES), None)
        if free is not None and start is None:
            start = Placement(entry.entry_id, free)
        reason = "; ".join(f"{d.facts.torch_name}: {verdict.reason}" for d, verdict in verdicts)
        if all(verdict.fit is _Fit.NEVER for _, verdict in verdicts):
            blocked[entry.entry_id] = f"does not fit: {reason}; make it smaller, or force it"
            continue
        if start is None or start.entry_id != entry.entry_id:
            waiting[entry.entry_id] = "starts next" if free is not None else f"waits for {reason}"
        for device, verdict in verdicts:
            # Of an entry that starts, only the device that it takes.
            if verdict.fit is not _Fit.NEVER and (free is None or device == free):
                first.setdefault(device.selector, entry.title)
    return Plan(start, waiting, blocked)


def _is_eligible(selector: str, device: QueueDevice, devices: Sequence[QueueDevice]) -> bool:
    """Return whether `selector` stands for the device; "auto" for every GPU, else for the CPU."""
    word = selector.strip().lower()
    if word == AUTO:
        return device.is_gpu or not any(other.is_gpu for other in devices)
    uuid = (device.facts.uuid or "").lower()
    is_first = word == device.facts.kind.value and device.facts.ordinal in (None, 0)
    return word == device.facts.torch_name or is_first or (len(word) > 4 and uuid.startswith(word))


def _verdict(entry: Waiting, device: QueueDevice, predict: Predict, first: dict[str, str]) -> _Verdict:
    answer: Answer | None = Impossible("")
    if entry.settings is not None and not entry.is_forced:
        answer = predict(entry.settings, Target.of(device.facts))
    memory = _memory_verdict(entry.settings, device, answer)
    if memory.fit is _Fit.NEVER:
        return memory
    if device.problem is not None:
        return _Verdict(_Fit.NOT_NOW, device.problem)
    if device.occupant is not None:
        return _Verdict(_Fit.NOT_NOW, f"run {device.occupant!r} is on it")
    if device.selector in first:
        return _Verdict(_Fit.NOT_NOW, f"{first[device.selector]!r} is before it")
    return memory


def _memory_verdict(settings: Settings | None, device: QueueDevice, answer: Answer | None) -> _Verdict:
    """Compare the predicted peak with the device's memory. What cannot be predicted starts on a device
    without a run."""
    if answer is None:
        return _Verdict(_Fit.NOT_NOW, "its memory is being predicted")
    if isinstance(answer, Impossible):
        return _Verdict(_Fit.NOT_NOW, answer.reason) if answer.is_passing else _Verdict(_Fit.YES)
    assert settings is not None
    idle = Target.of(device.facts)
    now = idle if device.free_bytes is None else idle._replace(memory_bytes=device.free_bytes)
    on_idle, on_now = fits(answer, settings, idle), fits(answer, settings, now)
    predicted = f"predicted {words.size(_needed_bytes(answer, settings, idle))}"
    if on_idle is False:
        return _Verdict(_Fit.NEVER, f"{predicted}, {words.size(limit_of(settings, idle)[0])} at most")
    # Where it is too close to tell even on the idle device, waiting does not help.
    if on_now or (on_now is None and on_idle is None):
        return _Verdict(_Fit.YES)
    return _Verdict(_Fit.NOT_NOW, f"{predicted}, {words.size(device.free_bytes)} free")


def _needed_bytes(prediction: Prediction, settings: Settings, target: Target) -> int:
    """Return the memory that must be available, with the context where the device's memory is the limit."""
    is_capped = settings.memory_cap_bytes is not None and limit_of(settings, target)[0] != target.memory_bytes
    context_bytes = 0 if is_capped else prediction.context_bytes or 0
    smallest_cap = smallest_cap_bytes(prediction, settings, target) or 0
    return max(prediction.needed_bytes + context_bytes, smallest_cap)
