"""Factories for measurements: a run that measures without real time, figures of blocks, and a log of one."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.analysis.effect.measured import BlockFigures
from harness.records.measurement import (
    Arm,
    MeasurementBlockRow,
    MeasurementEnd,
    MeasurementEndRow,
    MeasurementRow,
    MeasureRequest,
)
from harness.records.run import CommandKind, RunRow, SettingsRow, StepRow
from harness.settings import Settings
from harness.store.appender import LogAppender
from harness.store.inserts import Row
from harness.watch.measured_blocks import BLOCK_STEPS, DISCARDED_STEPS, balanced_orders
from tests.store_factories import a_run, a_step
from tests.train_factories import Clock, Watched, a_command

STEP_NS = 10_000_000
MEASURED = "m1"


class MeasuredRun(Watched):
    """A small run whose steps take no real time, to be measured."""

    def __init__(self, **values: Any) -> None:
        super().__init__(now_ns=Clock(), **values)
        self.step = 0

    def take(self, steps: int, step_ns: int = STEP_NS) -> bool:
        """Take so many steps; return False when the run has ended before."""
        for _ in range(steps):
            if not self.controller.proceed(self.step + 1):
                return False
            self.step += 1
            self.progress.last_step = self.step
            self.clock.now_ns += step_ns
        return True

    def finish(self, step_ns: int) -> None:
        """Take steps until the measurement has ended."""
        while not self.ends:
            assert self.take(1, step_ns)

    def request(self, kind: str, command_id: str = "c1", **payload: Any) -> None:
        """Send a command, which the next step carries out."""
        self.inbox.put(a_command(kind, json.dumps(payload), command_id))

    def measure(self, pairs: int = 8, command_id: str = MEASURED, **settings: Any) -> None:
        """Send the request for a measurement."""
        self.inbox.put(
            a_command(CommandKind.MEASURE, json.dumps(MeasureRequest(settings, pairs)._asdict()), command_id)
        )

    @property
    def plans(self) -> list[MeasurementRow]:
        return self.journal.of(MeasurementRow)

    @property
    def blocks(self) -> list[MeasurementBlockRow]:
        return self.journal.of(MeasurementBlockRow)

    @property
    def ends(self) -> list[MeasurementEndRow]:
        return self.journal.of(MeasurementEndRow)


def some_blocks(
    pairs: int = 20,
    ratio: float = 1.0,
    *,
    noise: float = 0.005,
    drift: float = 0.0,
    seed: int = 1,
    samples: tuple[int, int] = (32, 32),
) -> list[BlockFigures]:
    """The figures of blocks whose steps take `ratio` times as long in arm B, with independent noise, and a
    drift by that share over all of them. A step has so many samples in either arm."""
    rng = random.Random(seed)
    blocks = []
    for pair, order in enumerate(balanced_orders(pairs, str(seed)), 1):
        for position, arm in enumerate(order):
            passed = (2 * (pair - 1) + position) / (2 * pairs)
            step_ns = 1e7 * (1 + drift * passed) * rng.lognormvariate(0.0, noise)
            step_ns *= ratio if arm is Arm.B else 1.0
            each = samples[arm is Arm.B]
            blocks.append(
                BlockFigures(pair, arm, step_ns, 50 * step_ns, 50, 50 * each, 0.5, 100 << 20, 200 << 20, None)
            )
    return blocks


def write_measured_log(
    path: Path,
    ratio: float = 0.8,
    pairs: int = 8,
    *,
    planned: int | None = None,
    noise: float = 0.003,
    end: MeasurementEnd | None = MeasurementEnd.COMPLETED,
    keeps_if_better: bool = False,
    source: str = "shell",
    run: RunRow | None = None,
    more_rows: Sequence[Row] = (),
) -> None:
    """Write a log with one measurement of bf16 with steps `ratio` times as long, of at most `planned`
    pairs."""
    rows: list[StepRow] = [a_step(step) for step in range(1, 40)]
    before, after = json.dumps({"amp": "off"}), json.dumps({"amp": "bf16"})
    most, keeps = planned or pairs, int(keeps_if_better)
    plan = MeasurementRow(1, 40, rows[-1].t_ns, MEASURED, source, before, after, most, keeps)
    others: list[Row] = [_version(1, 1, 0, "off", None), plan]
    rng, now_ns, version, last = random.Random(1), rows[-1].t_ns, 1, Arm.A
    for pair, order in enumerate(balanced_orders(pairs, MEASURED), 1):
        for position, arm in enumerate(order, 1):
            if arm is not last:
                version, last = version + 1, arm
                others.append(
                    _version(version, len(rows) + 1, now_ns, "bf16" if arm is Arm.B else "off", MEASURED)
                )
            first, began_ns = len(rows) + 1 + DISCARDED_STEPS, now_ns
            for step in range(len(rows) + 1, first + BLOCK_STEPS):
                step_ns = round(STEP_NS * rng.lognormvariate(0, noise) * (ratio if arm is Arm.B else 1.0))
                now_ns += step_ns
                began_ns = now_ns if step == first - 1 else began_ns
                row = a_step(step)._replace(step_ns=step_ns, t_ns=now_ns, settings_version=version)
                rows.append(row._replace(flags=0 if step >= first else 2))
            others.append(
                MeasurementBlockRow(
                    1, pair, position, arm, first, len(rows), began_ns, now_ns, version, None, None
                )
            )
    if end is not None and last is Arm.B:
        others.append(_version(version + 1, len(rows) + 1, now_ns, "off", MEASURED))
    if end is not None:
        others.append(MeasurementEndRow(1, len(rows) + 1, now_ns, end, "All pairs were measured."))
    with LogAppender(path, run or a_run()) as appender:
        appender.append(rows, [*others, *more_rows])


def _version(version: int, step: int, t_ns: int, amp: str, command_id: str | None) -> SettingsRow:
    settings = Settings.model_validate({"amp": amp}).model_dump_json()
    changed = "{}" if version == 1 else json.dumps({"amp": amp})
    return SettingsRow(version, step, t_ns, settings, changed, command_id)
