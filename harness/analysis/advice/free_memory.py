"""Expected memory of a larger batch, and the memory available to a run."""

from harness.analysis.advice.evidence import RunEvidence
from harness.analysis.memory.pressure import TIGHT
from harness.analysis.oom.fit import fit
from harness.analysis.oom.report import BatchPeak


def fits_in_memory(run: RunEvidence, batch: int) -> bool | None:
    """Return whether a batch is expected to need less than 92 % of the available memory; None if unknown."""
    peak, _ = expected_peak(run, batch)
    available = available_bytes(run)
    return None if peak is None or available is None else peak <= TIGHT * available


def expected_peak(run: RunEvidence, batch: int) -> tuple[int | None, str]:
    """The expected peak for a batch, and the basis of the estimate."""
    if run.predicted_peak is not None and run.predicted_peak.batch_size == batch:
        return run.predicted_peak.peak_bytes, run.predicted_peak.basis
    peaks = [row.peak_allocated_bytes for row in run.settled if row.peak_allocated_bytes is not None]
    baselines = [row.allocated_bytes for row in run.settled if row.allocated_bytes is not None]
    if not peaks or not baselines:
        return None, ""
    line = fit([BatchPeak(run.settings.batch_size, max(peaks), len(peaks))], min(baselines))
    return (None, "") if line is None else (line.peak_bytes(batch), "by a line through this run's peak")


def available_bytes(run: RunEvidence) -> int | None:
    """Memory available to the run's tensors: its cap, else the device's memory less that used by others, in
    either case at most that under the limit of the process."""
    cap_bytes, limit_bytes = run.settings.memory_cap_bytes, run.process_limit_bytes
    available = (_device_bytes(run) if cap_bytes is None else cap_bytes, limit_bytes)
    return min((size for size in available if size is not None), default=None)


def _device_bytes(run: RunEvidence) -> int | None:
    sample = run.memory
    if sample is None or sample.used_bytes is None or not sample.total_bytes:
        return None
    reserved_bytes = sample.reserved_bytes
    if reserved_bytes is None:
        return None
    return max(1, sample.total_bytes - max(0, sample.used_bytes - reserved_bytes))
