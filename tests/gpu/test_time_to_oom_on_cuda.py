"""The stated time until the GPU's memory runs out, against real runs of random leaks under caps."""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from harness.records.run import EventKind
from harness.settings.resolve import resolve
from harness.store.folder import RunFolder, RunRequest, write_request
from harness.store.reader import LogReader
from tests.bench.oom_time import LEAST_LEFT, LEAST_SHARE, WITHIN
from tests.bench.oom_time_series import Statement, against_the_truth

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]

RUNS, AT_ONCE = 16, 8
_FAULTS = ("leak:graph", "leak:hidden", "leak:list", "leak:cache", "fragmentation")
_LONGEST_S = 60.0
Record = Callable[[str, object], None]


def test_the_first_statement_is_within_half_as_much_again(tmp_path: Path, record_property: Record) -> None:
    seed = secrets.randbelow(2**31)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = list(pool.map(lambda number: died(tmp_path / str(number), seed, number), range(RUNS)))
    rows = {label: [one for one in stated if one.left >= LEAST_LEFT] for label, stated in runs}
    first = {label: stated[0] for label, stated in rows.items() if stated}
    record_property("seed", seed)
    record_property("runs with a statement", f"{len(first)} of {len(rows)}")
    for label, one in first.items():
        record_property(
            label, f"{one.stated} stated of {one.left} at step {one.step}, factor {one.factor:.2f}"
        )
    for label in rows.keys() - first.keys():
        record_property(label, "no statement")
    within = sum(one.factor <= WITHIN for one in first.values())
    assert first
    assert within >= LEAST_SHARE * len(first)


def died(folder: Path, seed: int, number: int) -> tuple[str, list[Statement]]:
    """Train the mlp with a random leak until memory runs out; the fault, and what was stated about it."""
    chance = np.random.default_rng([seed, number])
    fault = str(chance.choice(_FAULTS))
    kib = int(np.exp(chance.uniform(np.log(96), np.log(1024))))
    cap_gib = round(float(np.exp(chance.uniform(np.log(0.4), np.log(2.0)))), 3)
    inject = f"{fault}:{kib}KiB"
    values = {
        "model": "mlp",
        "device": "cuda",
        "batch_size": 512,
        "memory_cap_gib": cap_gib,
        "inject": inject,
    }
    settings = resolve(values | {"seed": number, "oom_policy": "stop", "max_seconds": _LONGEST_S})
    folder.mkdir()
    write_request(folder, RunRequest(folder.name, "oom-time", time.time_ns(), settings.model_dump_json()))
    subprocess.run(
        [sys.executable, "-m", "harness", "_run", str(folder)],
        check=False,
        capture_output=True,
        timeout=3 * _LONGEST_S,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    label = f"run {number}: {inject} under {cap_gib} GiB"
    with LogReader(RunFolder(folder).log) as log:
        ends = [event.step for _, event in log.events() if event.kind == EventKind.OOM]
        if not ends:
            run = log.run()
            return f"{label} ({run.state}: {run.state_message})", []
        return f"{label} ({ends[0]} steps)", against_the_truth(log.memory.leaks(), ends[0])
