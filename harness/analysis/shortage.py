"""Whether the host's memory was short when a process ended without saying why: the kernel ends one with
SIGKILL then."""

from collections.abc import Sequence
from itertools import pairwise

from harness import words
from harness.analysis.leak import wording
from harness.records.memory import LeakRow, LeakSeries, LeakVerdict
from harness.records.run import HostSampleRow

# Memory is short if less than this share is left, or less than grows in so many pauses between samples.
_SHORT_SHARE, _SHORT_PAUSES = 0.05, 2
_ON_CPU = (LeakSeries.ALLOCATED, LeakSeries.HOST, LeakSeries.WORKERS, LeakSeries.FRAGMENTATION)
_ON_GPU = (LeakSeries.HOST, LeakSeries.WORKERS)


def sentences_on_shortage(samples: Sequence[HostSampleRow], leaks: Sequence[LeakRow], *, on_cpu: bool) -> str:
    """Return sentences on the newest of `samples`, in order, at which memory was short, and on the leak among
    `leaks`, the newest verdict on each series; empty where memory was not short."""
    for before, sample in reversed(list(pairwise(samples))):
        if (text := _shortage(before, sample)) is not None:
            break
    else:
        return ""
    called = {row.series: row for row in leaks if row.verdict == LeakVerdict.LEAK}
    for series in _ON_CPU if on_cpu else _ON_GPU:
        if (leak := called.get(series)) is not None and leak.bytes_per_step is not None:
            return f"{text} {wording.growth(leak, on_cpu)}"
    return text


def _shortage(before: HostSampleRow, sample: HostSampleRow) -> str | None:
    """Return sentences on the memory at `sample`, None where it was not short or is not known."""
    used_bytes, total_bytes = sample.ram_used_bytes, sample.ram_total_bytes
    if used_bytes is None or not total_bytes or before.ram_used_bytes is None:
        return None
    grown_bytes = used_bytes - before.ram_used_bytes
    if total_bytes - used_bytes >= max(_SHORT_SHARE * total_bytes, _SHORT_PAUSES * grown_bytes):
        return None
    growing = f", {words.size(grown_bytes)} more than in the sample before" if grown_bytes > 0 else ""
    return (
        f"Memory was short: {words.size(used_bytes)} of {words.size(total_bytes)} were in use at step "
        f"{words.count(sample.step)}{growing}. The kernel's OOM killer is the likely cause."
    )
