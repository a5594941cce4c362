"""The causes that a log names for the end of a process that nothing else explains."""

from pathlib import Path

from harness.analysis.recent_change import sentence_on_end
from harness.analysis.shortage import sentences_on_shortage
from harness.errors import LogError
from harness.records.run import DeviceKind
from harness.store.reader import LogReader
from harness.supervisor.stored_json import read_device

# Of the host: how fast memory in use grows, and how much of it was left.
_SAMPLES = 2


def read_end_causes(path: Path, last_step: int, *, may_be_killed: bool, limit_s: float) -> str:
    """Return sentences on what the end of a process after `last_step` follows: a shortage of memory, if
    SIGKILL may have ended it, and a live change. Empty without either, and where the log at `path` cannot be
    read."""
    try:
        with LogReader(path, total_limit_s=limit_s) as log:
            sentences = [sentence_on_end(log.settings_history(), last_step)]
            if may_be_killed:
                device = read_device(log.run().device)
                on_cpu = device is not None and device.kind is DeviceKind.CPU
                samples, leaks = log.last_host_samples(_SAMPLES, 0), log.memory.current_leaks()
                sentences.insert(0, sentences_on_shortage(samples, leaks, on_cpu=on_cpu))
    except (LogError, ValueError):  # ValueError: settings of a foreign log that are none.
        return ""
    return " ".join(filter(None, sentences))
