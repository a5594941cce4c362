"""Measure what the log's writer takes: a fast run's steps without a gap, its processor time, bytes a step on
disk."""

import random
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from harness.records.run import EventKind, StepRow
from harness.store.reader import LogReader
from harness.store.writer import LogWriter
from tests.bench.figures import Figure
from tests.store_factories import a_run

_STEPS_A_SECOND = 2_000
_SECONDS, _QUICK_SECONDS = 20.0, 5.0
_BURST_S = 0.005
MOST_BYTES = 250.0
_MIB, _GIB = 1 << 20, 1 << 30


class _Outcome(NamedTuple):
    missing: int
    cpu_pct: float
    cpu_us: float
    bytes_each: float


def figures(folder: Path, is_quick: bool) -> list[Figure]:
    """A run on the CPU and one on a GPU."""
    seconds = _QUICK_SECONDS if is_quick else _SECONDS
    result = []
    for name, make in (("CPU rows", cpu_row), ("CUDA rows", cuda_row)):
        outcome = _write(folder / f"{name}.sqlite3", make, seconds)
        of = f"writer, {name}"
        result += [
            Figure(f"{of}: missing of {_STEPS_A_SECOND:,} steps/s", [outcome.missing], "steps", 0),
            Figure(f"{of}: of one core", [outcome.cpu_pct], "%"),
            Figure(f"{of}: processor time a step", [outcome.cpu_us], "µs"),
            Figure(f"{of}: on disk", [outcome.bytes_each], "bytes/step", MOST_BYTES),
        ]
    return result


def _write(path: Path, make: Callable[[random.Random, int], StepRow], seconds: float) -> _Outcome:
    rng = random.Random(0)
    total = int(_STEPS_A_SECOND * seconds)
    rows = [make(rng, step) for step in range(1, total + 1)]
    waiting: deque[StepRow] = deque()

    def feed() -> list[StepRow]:
        return [waiting.popleft() for _ in range(len(waiting))]

    began = time.perf_counter()
    with LogWriter(path, a_run(), feed, time.monotonic_ns) as writer:
        (thread,) = (t for t in threading.enumerate() if t.name == "stepscope-log")
        assert thread.ident is not None
        clock = time.pthread_getcpuclockid(thread.ident)
        count = 0
        while count < total:
            due = min(total, int((time.perf_counter() - began) * _STEPS_A_SECOND))
            waiting.extend(rows[count:due])
            count = due
            time.sleep(_BURST_S)
        assert writer.flush(10.0)
        cpu_s, wall_s = time.clock_gettime(clock), time.perf_counter() - began
    with LogReader(path) as log:
        gaps = [event for _, event in log.events() if event.kind == EventKind.GAP]
        held = len(log.last_steps(total))
    missing = total if gaps else total - held
    return _Outcome(missing, 100 * cpu_s / wall_s, cpu_s / total * 1e6, path.stat().st_size / total)


def cpu_row(rng: random.Random, step: int) -> StepRow:
    """A step of two milliseconds on the CPU."""
    step_ns = int(2e6 * rng.uniform(1, 1.1))
    live_bytes = 18 * _MIB + rng.randrange(_MIB) // 512 * 512
    rss = 400 * _MIB + rng.randrange(_MIB) // 4096 * 4096
    return StepRow(
        step=step,
        t_ns=step * 2_000_000 + rng.randrange(10**6),
        step_ns=step_ns,
        data_wait_ns=rng.randrange(300_000),
        h2d_ns=rng.randrange(2_000),
        forward_ns=800_000 + rng.randrange(10**6),
        backward_ns=900_000 + rng.randrange(10**6),
        optimizer_ns=200_000 + rng.randrange(10**5),
        device_step_ns=None,
        device_h2d_ns=None,
        device_forward_ns=None,
        device_backward_ns=None,
        device_optimizer_ns=None,
        device_gap_ns=None,
        loss=rng.random(),
        loss_state=0,
        samples=32,
        tokens=None,
        allocated_bytes=live_bytes,
        reserved_bytes=rss,
        active_bytes=None,
        peak_allocated_bytes=live_bytes + 8 * _MIB,
        peak_reserved_bytes=None,
        inactive_split_bytes=None,
        alloc_retries=None,
        ooms=None,
        rss_bytes=rss,
        settings_version=1,
        flags=0,
        all_reduce_wait_ns=None,
        broadcast_wait_ns=None,
    )


def cuda_row(rng: random.Random, step: int) -> StepRow:
    """A step of 44 ms on a large GPU."""
    step_ns = int(44e6 * rng.uniform(1, 1.1))
    live_bytes = 18 * _GIB + rng.randrange(_GIB) // 512 * 512
    return cpu_row(rng, step)._replace(
        t_ns=step * 44_000_000 + rng.randrange(10**6),
        step_ns=step_ns,
        device_step_ns=step_ns + rng.randrange(10**5),
        device_h2d_ns=1_000_000 + rng.randrange(10**5),
        device_forward_ns=14_000_000 + rng.randrange(10**6),
        device_backward_ns=20_000_000 + rng.randrange(10**6),
        device_optimizer_ns=3_000_000 + rng.randrange(10**5),
        device_gap_ns=100_000 + rng.randrange(10**6),
        tokens=49_152,
        allocated_bytes=live_bytes,
        reserved_bytes=live_bytes + 14 * _GIB,
        active_bytes=live_bytes + 32 * _MIB,
        peak_allocated_bytes=live_bytes + 8 * _GIB,
        peak_reserved_bytes=live_bytes + 14 * _GIB,
        inactive_split_bytes=rng.randrange(_GIB),
        alloc_retries=3,
        ooms=0,
    )
