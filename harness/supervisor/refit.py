"""The peak of other batch sizes in a run, from its own steps: for scripts, which no prediction can trace."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from harness import words
from harness.analysis.memory.refit import LEAST_RATIO, PeakFit, fit_peak
from harness.records.memory import LeakRow, LeakSeries, LeakVerdict, SnapshotReason
from harness.records.run import DeviceKind, SettingsRow
from harness.store.reader import LogReader
from harness.supervisor.stored_json import read_device

# The last steps of a run that are read, some 10 ms.
_MOST_STEPS = 20_000
_MOST_VERSIONS = 64
_SIZE = "batch_size"
# The last batch of an epoch may be smaller than the others.
_NEWEST_STEPS = 50
# Beyond this multiple of the largest measured size, a line says little.
_FARTHEST = 64
# Growth between steps from this share of what a batch needs on counts as a leak, called one or not.
_LEAST_GROWTH_SHARE = 0.5
# Devices with `samples_peak` (harness/device/protocol.py): a peak is the highest of several readings.
_WITH_SAMPLED_PEAKS = frozenset({DeviceKind.CPU, DeviceKind.MPS})


class Refit(NamedTuple):
    """The fit of a run, and the most samples of its newest steps."""

    fit: PeakFit
    samples: int
    # The highest peak of its steps with at most `larger` samples, with those of the warm-up; 0: unknown.
    reached_bytes: int = 0
    # The highest point of a short step may be between two readings.
    is_lower_bound: bool = False

    @property
    def larger(self) -> int:
        """Twice the batch, but no more than twice the largest that the fit rests on."""
        return 2 * min(self.samples, self.fit.sizes[-1])

    @property
    def peak_bytes(self) -> int:
        """The peak with the samples of `larger`."""
        return max(self.fit.peak_bytes(self.larger), self.reached_bytes)

    @property
    def basis(self) -> str:
        """The basis of the fit, in words."""
        *smaller, largest_fitted = self.fit.sizes[:6]
        sizes = ", ".join([*map(words.count, smaller), words.plural(largest_fitted, "sample")])
        basis = f"from steps of {sizes}" if not self.fit.is_proportional else f"from steps of {sizes} alone"
        return f"{basis}, with peaks that were sampled" if self.is_lower_bound else basis

    def sentence(self, limit_bytes: int | None) -> str:
        """Return the peak of a larger batch, and the largest batch under the limit, in words."""
        fit = self.fit
        # Beyond the sizes of a line the true curve, the highest of several, may be another one.
        is_least = self.is_lower_bound or (not fit.is_proportional and self.larger > fit.sizes[-1])
        or_more, at_most = (" or more", "at most ") if is_least else ("", "")
        text = f"A batch of {words.count(self.larger)}"
        if fit.is_proportional:
            text = f"If all that a step needs beyond {words.size(fit.fixed_bytes)} grows with the batch, one"
            text += f" of {words.count(self.larger)}"
        text += f" would peak at about {words.size(self.peak_bytes)}{or_more}"
        largest = None if limit_bytes is None else fit.largest(limit_bytes)
        if largest is not None and largest <= _FARTHEST * fit.sizes[-1]:
            text += f"; {at_most}about {words.count(largest)} would fit into {words.size(limit_bytes)}"
        return f"{text} ({self.basis})."


def refit_peak(reader: LogReader) -> Refit | None:
    """Return the fit of the run in a log; None while too little was measured, also where one of the newest
    steps is larger than those that were, and while live tensors leak, or have grown by half of what a batch
    needs: peaks then grow whatever the batch. Raises LogError."""
    last = reader.extent().last
    growth = [row for row in reader.memory.current_leaks() if row.series == LeakSeries.ALLOCATED]
    if last is None or any(row.verdict == LeakVerdict.LEAK for row in growth):
        return None
    steps = reader.last_steps(_NEWEST_STEPS)
    newest = steps[-1].settings_version
    history = reader.settings_history()
    versions = _comparable(history) or [newest]
    first = max(0, last - _MOST_STEPS)
    fit = fit_peak(reader.measured_peaks(first, last, versions), _gradient_bytes(reader))
    samples = max(step.samples for step in steps if step.settings_version == newest)
    if fit is None or not samples or samples >= LEAST_RATIO * fit.sizes[-1]:
        return None
    if any(_is_of_a_batch(row, fit.bytes_per_sample * samples) for row in growth):
        return None
    device = read_device(reader.run().device)
    is_sampled = device is not None and device.kind in _WITH_SAMPLED_PEAKS
    refit = Refit(fit, samples, is_lower_bound=is_sampled)
    if refit.larger < fit.sizes[-1]:  # On the CPU a short step may have the reading of a larger one.
        return refit
    return refit._replace(reached_bytes=reader.highest_peak(first, last, versions, refit.larger))


def _gradient_bytes(reader: LogReader) -> int:
    """Return the memory of the gradients between steps, which scripts free before the next forward pass; 0:
    none, or unknown."""
    snapshots = reader.memory.snapshots()
    number = next((row.snapshot_id for row in snapshots if row.reason == SnapshotReason.START), None)
    modules = [] if number is None else reader.memory.modules(number)
    return sum(module.gradient_bytes or 0 for module in modules)


def _is_of_a_batch(row: LeakRow, batch_bytes: float) -> bool:
    """Return whether what may be a leak has grown to a size that matters beside `batch_bytes`."""
    risen_bytes = row.risen_bytes or 0
    return row.verdict == LeakVerdict.WATCH and risen_bytes >= _LEAST_GROWTH_SHARE * batch_bytes


def _comparable(history: Sequence[SettingsRow]) -> list[int]:
    """Return the versions of the settings that differ from the newest one in the batch size alone."""
    if not history:
        return []
    newest = _without_size(history[-1])
    return [row.version for row in history[-_MOST_VERSIONS:] if _without_size(row) == newest]


def _without_size(row: SettingsRow) -> dict[str, Any] | None:
    try:
        return {name: value for name, value in row.values.items() if name != _SIZE}
    except ValueError:
        return None
