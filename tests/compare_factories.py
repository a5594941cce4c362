"""Facts of runs and logs for tests of comparisons."""

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from dashboard.buckets import BucketTable
from dashboard.charts.compare import Compared
from harness.analysis.compare.curves import CurveAxis
from harness.analysis.compare.facts import RunFacts
from harness.analysis.effect.windows import SteadyStep
from harness.analysis.timing.phases import analyze
from harness.records.run import StepRow
from harness.settings.resolve import resolve
from harness.store.appender import LogAppender
from harness.store.folder import RunFolder
from harness.store.home import Home
from tests.store_factories import a_run, a_settings_row, a_step

STEP_NS = 2_000_000


def noisy_rows(step_ns: float, seed: int, count: int = 600, samples: int = 32) -> list[StepRow]:
    """Steps of about `step_ns` with 2 % of noise."""
    noise = np.random.default_rng(seed).normal(1.0, 0.02, count)
    return [
        a_step(at + 1)._replace(
            step_ns=int(step_ns * noise[at]), t_ns=int((at + 1) * step_ns), samples=samples
        )
        for at in range(count)
    ]


def some_run(name: str, step_ns: float = STEP_NS, seed: int = 0, **more: Any) -> RunFacts:
    """A run of noisy steps."""
    rows = noisy_rows(step_ns, seed, samples=more.pop("samples", 32)) if step_ns else []
    steady = [
        SteadyStep(row.step, row.step_ns, row.samples, row.peak_allocated_bytes, 1, row.step_ns)
        for row in rows
    ]
    facts = RunFacts(
        run_id=name,
        name=name,
        state="finished",
        is_simulated=False,
        device="Some CPU",
        versions={},
        settings={"batch_size": 32, "amp": "off"},
        changes=0,
        span=(1, len(rows)) if rows else None,
        steps=len(rows),
        timing=analyze(rows) if rows else None,
        steady=steady,
        peak_allocated_bytes=10_000_000 if rows else None,
        peak_reserved_bytes=None,
        final_loss=0.5 if rows else None,
        duration_s=1.2 if rows else None,
        profile=None,
        memory=None,
    )
    return facts._replace(**more)


def a_logged_run(
    name: str,
    step_ns: float = STEP_NS,
    count: int = 100,
    change: Callable[[StepRow], StepRow] = lambda row: row,
    **settings: Any,
) -> RunFolder:
    """A finished run in the home of the environment."""
    values = resolve({"model": "mlp", **settings})
    folder = Home.locate(None, os.environ).create(name, values, time.time_ns() - 10**12)
    run = a_run(folder.run_id, name)._replace(
        settings=values.model_dump_json(), state="finished", state_message="Took all steps."
    )
    with LogAppender(folder.log, run) as appender:
        settings_row = a_settings_row()._replace(settings=values.model_dump_json())
        appender.append([change(row) for row in noisy_rows(step_ns, seed=count, count=count)], [settings_row])
    return folder


def a_compared(name: str, steps: BucketTable) -> Compared:
    """A run of a comparison with these buckets."""
    return Compared(name, some_run(name), steps, dict.fromkeys(CurveAxis, steps.step))
