"""A million steps through the real recorder and writer, and what the process holds meanwhile.

`python -m tests.faults.soak STEPS FOLDER` records them and prints a sample per line: step, RSS, descriptors
and the size of the write-ahead log.
"""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from harness.records.run import EventKind
from harness.store.reader import LogReader
from tests.faults.forks import ROOT
from tests.faults.scenario import Bench, Measurement, Scenario

_STEPS, _QUICK_STEPS = 1_000_000, 15_000
_PERIOD_S = 0.25
_MOST_RSS_MIB = 4.0
# SQLite empties the log every 1,000 pages of 4 KiB; a transaction of up to 5,000 steps may come on top.
_MOST_WAL_MIB = 8.0
_MIB = 2**20


class Sample(NamedTuple):
    """Resources of the process at one moment."""

    step: int
    rss_bytes: int
    descriptors: int
    wal_bytes: int


def record(steps: int, folder: Path) -> None:
    """Record so many steps that compute next to nothing."""
    import torch

    from harness.device.cpu.device import CpuDevice
    from tests.bench.flat import Pacer
    from tests.bench.rig import Recording

    torch.set_num_threads(1)
    workload: Any = Pacer()
    process, over = psutil.Process(), threading.Event()

    def sample() -> None:
        while not over.wait(_PERIOD_S):
            wal = recording.log.with_name(recording.log.name + "-wal")
            wal_bytes = wal.stat().st_size if wal.exists() else 0
            sample = Sample(recording.last_step, process.memory_info().rss, process.num_fds(), wal_bytes)
            os.write(1, (" ".join(map(str, sample)) + "\n").encode())

    with Recording(workload, CpuDevice.open(), folder) as recording:
        sampler = threading.Thread(target=sample)
        sampler.start()
        try:
            recording.train(steps)
        finally:
            over.set()
            sampler.join()
    if recording.errors:
        raise RuntimeError("; ".join(recording.errors))


def _soak(bench: Bench) -> Measurement:
    steps = bench.count(_STEPS, _QUICK_STEPS)
    folder = bench.new_folder("soak") / "run"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.soak", str(steps), str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=900,
    )
    samples = [Sample(*map(int, line.split())) for line in done.stdout.splitlines()]
    late = [sample for sample in samples if sample.step > steps / 10]
    with LogReader(folder / "log.sqlite3") as log:
        gaps = [event for _, event in log.events() if event.kind == EventKind.GAP]
        logged = log.extent().steps
    growth_mib = (max(sample.rss_bytes for sample in late) - late[0].rss_bytes) / _MIB
    # Files that are read and closed within a moment are open in some samples: the fewest tell what stays.
    early = [sample.descriptors for sample in late if sample.step <= steps / 5] or [late[0].descriptors]
    descriptors = min(sample.descriptors for sample in late if sample.step > steps * 0.9) - min(early)
    wal_mib = max(sample.wal_bytes for sample in late) / _MIB
    broken = [f"{len(gaps)} gaps"] if gaps else []
    if logged != steps:
        broken.append(f"{logged:,} of {steps:,} steps are in the log")
    if growth_mib > _MOST_RSS_MIB:
        broken.append(f"RSS grew by {growth_mib:.1f} MiB")
    if descriptors > 0:
        broken.append(f"{descriptors} more descriptors")
    if wal_mib > _MOST_WAL_MIB:
        broken.append(f"the write-ahead log grew to {wal_mib:.1f} MiB")
    text = (
        f"{steps:,} steps: after the first tenth RSS grew by {growth_mib:.1f} MiB, descriptors by "
        f"{descriptors}, the write-ahead log had at most {wal_mib:.1f} MiB; {logged:,} steps are in the log"
    )
    return Measurement(text, tuple(broken))


SCENARIOS = (
    Scenario(
        "soak",
        "A million steps",
        f"What the process holds stays flat: RSS within {_MOST_RSS_MIB:g} MiB after the first tenth, no "
        f"descriptor more, a write-ahead log of {_MOST_WAL_MIB:g} MiB at most, every step in the log.",
        _soak,
        is_in_tests=False,
    ),
)

if __name__ == "__main__":
    record(int(sys.argv[1]), Path(sys.argv[2]))
