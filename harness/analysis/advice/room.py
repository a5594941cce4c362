"""How much memory a larger batch is expected to need, and how much the run can have."""

from harness.analysis.advice.known import Known
from harness.analysis.memory.pressure import TIGHT
from harness.analysis.oom.fit import fit
from harness.analysis.oom.report import BatchPeak


def has_room(known: Known, batch: int) -> bool | None:
    """Whether a batch is expected to need less than 92 % of what the run can have; None: not known."""
    peak, _ = expected_peak(known, batch)
    available = available_bytes(known)
    return None if peak is None or available is None else peak <= TIGHT * available


def expected_peak(known: Known, batch: int) -> tuple[int | None, str]:
    """The peak expected with a batch, and what that rests on."""
    if known.foreseen is not None and known.foreseen.batch_size == batch:
        return known.foreseen.peak_bytes, "predicted"
    peaks = [row.peak_allocated_bytes for row in known.settled if row.peak_allocated_bytes is not None]
    held = [row.allocated_bytes for row in known.settled if row.allocated_bytes is not None]
    if not peaks or not held:
        return None, ""
    line = fit([BatchPeak(known.settings.batch_size, max(peaks), len(peaks))], min(held))
    return (None, "") if line is None else (line.peak_bytes(batch), "by a line through this run's own peak")


def available_bytes(known: Known) -> int | None:
    """What the run's tensors can have: its cap, else what the device has less what others hold of it."""
    cap_bytes, sample = known.settings.memory_cap_bytes, known.memory
    if cap_bytes is not None:
        return cap_bytes
    if sample is None or sample.used_bytes is None or not sample.total_bytes:
        return None
    own = sample.reserved_bytes
    return None if own is None else max(1, sample.total_bytes - max(0, sample.used_bytes - own))
